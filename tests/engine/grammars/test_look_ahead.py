"""Tests of patterns that begin with look-aheads: the same texts match, and what cannot be rewritten stays refused."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from engine.errors import InvalidRequestError
from engine.grammars import grammar
from engine.grammars.grammar import check_grammar
from engine.grammars.look_ahead import without_look_ahead
from engine.structured import StructuredOutput

llguidance = pytest.importorskip("llguidance")

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
"""As pydantic writes the text of a Decimal."""
PATTERNS = [
    DECIMAL,
    r"^(?!-)[-.a1]*$",
    r"^(?!a\.)[a.1]+$",
    r"^(?![a-b]1|\.)(a|1|\.)*$",
    r"^(?!a1$)a?1?\.?$",
    r"^(?![a1]+$)[a1.]*$",
    r"^(?!\d)(?![^a])",
    r"^(?!.*1)a*.*$",
    r"^(?!.*1)",
    r"^(?!.*[^a])",
    r"^(?!.*\s|a)",
    r"^(?!.*\n)",
    r"^(?!.*\-)[a\s\S]*$",
    r"^(?=.*\d)(?=.*[a-z]).{2,}$",
    r"^(?=a|1)",
    r"^(?!\$)",
    r"^(?![a1]$)",
    r"^(?!\w+$)",
]
TEXTS = ["".join(signs) for length in range(5) for signs in itertools.product("a1.-\n", repeat=length)]
KEPT_OUT = [
    *(r"^(?!(a|b)+)c", r"^a(?!b)", r"(?!a)b", r"^(?!a)b|c", r"^(?!a{2})b", r"^(?<!a)b", r"^(?!a", r"^(?!\bab)"),
    *(
        r"^(?=a){0}b",
        r"^(?=a)?b",
        r"^(?=a)*b",
        r"^(?!a)+b",
        r"^(?=b)(?!a){0,1}b",
        r"^(?=a){2,}a",
        r"^(?!.*\i)",
        r"^(?!.*[+--])",
    ),
]


def is_matched(pattern: str, text: str) -> bool:
    """Tell whether a JSON schema's pattern matches: Python's $ would match before a last line break, too."""
    return re.search(re.sub(r"(?<!\\)\$", r"\\Z", pattern), text) is not None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts_match(pattern: str) -> None:
    written = without_look_ahead(pattern)
    assert written is not None
    for text in TEXTS:
        assert all(is_matched(each, text) for each in written) == is_matched(pattern, text), repr(text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_schema_with_such_a_pattern_allows_the_same_texts(pattern: str) -> None:
    tokens = llguidance.LLTokenizer("byte")
    (source, *_) = grammar._sources(StructuredOutput(json={"type": "string", "pattern": pattern}))
    start = llguidance.LLMatcher(tokens, source, log_level=0)
    assert not start.is_error(), start.get_error()
    for text in TEXTS:
        matcher = start.deep_copy()
        is_allowed = matcher.consume_tokens(list(json.dumps(text).encode())) and matcher.is_accepting()
        assert bool(is_allowed) == is_matched(pattern, text), repr(text)


@pytest.mark.parametrize("pattern", KEPT_OUT)
def test_other_look_arounds_stay_refused(pattern: str) -> None:
    assert without_look_ahead(pattern) is None
    with pytest.raises(InvalidRequestError, match="regex"):
        check_grammar(StructuredOutput(json={"type": "string", "pattern": pattern}))
