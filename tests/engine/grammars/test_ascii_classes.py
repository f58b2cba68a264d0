"""Tests that `\\d`, `\\w`, `\\s` and their opposites in regexes and Lark are ASCII, unless a flag requests Unicode."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidRequestError
from engine.grammars.ascii_classes import ascii_lark, ascii_regex
from engine.grammars.grammar import _sources, check_grammar
from engine.structured import StructuredOutput

llguidance = pytest.importorskip("llguidance")
TOKENS = llguidance.LLTokenizer("byte")

ARABIC_5, SEGMENT_8, E_ACUTE, NO_BREAK, KELVIN = "\u0665", "\U0001fbf8", "\u00e9", "\u00a0", "\u212a"


def fits(text: str, **kind: Any) -> bool:
    """Return whether a whole text matches a structured output of this kind, as compiled by the engine."""
    source = next(_sources(StructuredOutput(**kind)))
    matcher = llguidance.LLMatcher(TOKENS, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(token) for token in TOKENS.tokenize_str(text)) and matcher.is_accepting()


REGEXES = [
    (r"\d", "5", [ARABIC_5, SEGMENT_8]),
    (r"\d{4}-\d\d", "2026-11", [f"{SEGMENT_8 * 4}-{SEGMENT_8 * 2}", f"202{ARABIC_5}-11"]),
    (r"\w+", "a_Z0", [E_ACUTE, ARABIC_5]),
    (r"\s", "\t", [NO_BREAK, "\u2003"]),
    (r"\D", E_ACUTE, ["5"]),
    (r"\D", ARABIC_5, ["5"]),
    (r"\W", E_ACUTE, ["a", "_"]),
    (r"\S", NO_BREAK, [" ", "\n"]),
    (r"[\d]", "5", [ARABIC_5]),
    (r"[\d.]", ".", [ARABIC_5]),
    (r"[.\w-]", "-", [E_ACUTE, "+"]),
    (r"[-\d]", "-", [ARABIC_5, "."]),
    (r"[^\d]", ARABIC_5, ["5"]),
    (r"[\D]", ARABIC_5, ["5"]),
    (r"[5\D]", "5", ["6"]),
    (r"[^\W\d]", "a", ["5", E_ACUTE]),
    (r"[^\s,]", NO_BREAK, [" ", ","]),
    (r"[]\d]", "]", [ARABIC_5]),
    (r"[^]\d]", ARABIC_5, ["5", "]"]),
    (r"[\]\d]", "]", [ARABIC_5]),
    (r"[a[\d]]", "5", [ARABIC_5]),
    (r"[\w&&[^\d]]", "a", ["5", E_ACUTE]),
    (r"[\w--\d]", "a", ["5", E_ACUTE]),
    (r"[[:alpha:]\d]", "5", [ARABIC_5]),
    (r"[+-/\d]", ".", [ARABIC_5, ":"]),
    (r"[\x{30}-\x{34}\w]", "4", [ARABIC_5]),
    (r"\\d", r"\d", ["5", r"\5"]),
    (r"\\\d", r"\5", [f"\\{ARABIC_5}"]),
    (r"[\\d]", "d", ["5"]),
    (r"\[\d\]", "[5]", [f"[{ARABIC_5}]"]),
    (r"\(?\d\)?", "(5)", [f"({ARABIC_5})"]),
    (r"(\d)(?:\d)(?P<n>\d)", "555", [f"55{ARABIC_5}"]),
    (r"(?i)k\w", "Ka", [f"K{KELVIN}", f"k{E_ACUTE}"]),
    (r"(?i:\w)", "A", [KELVIN]),
    (r"(?x) \d [\d] # and no (", "55", [f"{ARABIC_5}5", f"5{ARABIC_5}"]),
    (r"(?s).\d", "\n5", [f"\n{ARABIC_5}"]),
    (r"(?-u:\d)\d", "55", [f"5{ARABIC_5}", f"{ARABIC_5}5"]),
    (r"(?u:\d)\d", f"{ARABIC_5}5", [f"5{ARABIC_5}"]),
    (r"(?:(?u)\d)\d", f"{ARABIC_5}5", [f"5{ARABIC_5}"]),
    (r"\d(?u)\d", f"5{ARABIC_5}", [f"{ARABIC_5}5"]),
    (r"(?iu)\w", KELVIN, ["-"]),
    (r"(?u)[\w.]", E_ACUTE, ["-"]),
    (r"(?u:\d(?-u:[\d]))", f"{ARABIC_5}5", [f"5{ARABIC_5}"]),
    (r"\p{Nd}", ARABIC_5, ["a"]),
]


@pytest.mark.parametrize(("regex", "text", "others"), REGEXES)
def test_a_regex_has_classes_of_ascii_but_where_a_flag_asks_for_unicode(
    regex: str, text: str, others: list[str]
) -> None:
    assert fits(text, regex=regex)
    assert [other for other in others if fits(other, regex=regex)] == []


GRAMMARS = [
    (r"start: /\d+/", "55", [ARABIC_5]),
    (r"start: /\d/i", "5", [ARABIC_5]),
    (r"start: /\w/i", "K", [KELVIN, E_ACUTE]),
    (r"start: /[\w.]\s/s", "a ", [f"a{NO_BREAK}", f"{E_ACUTE} "]),
    (r"start: /\d/u", ARABIC_5, ["a"]),
    (r"start: /\d \w/ux", f"{ARABIC_5}{E_ACUTE}", ["5 a"]),
    (r"start: /(?u)\d/", ARABIC_5, ["a"]),
    ("start: A B\nA: /\\d/ // of /\\d/\nB: /\\D/ # not /x", f"5{ARABIC_5}", [f"{ARABIC_5}a", "55"]),
    ("start: /\\d # no ( here, nor [\n \\w/x", "5a", [f"{ARABIC_5}a", f"5{E_ACUTE}"]),
    (r'start: "\\d/" /\w/ "/" /\d/', r"\d/a/5", [rf"\d/{E_ACUTE}/5", rf"\d/a/{ARABIC_5}"]),
    (r"start: /a\/\d/", "a/5", [f"a/{ARABIC_5}"]),
    (r'start: %json {"const": "/\\d/"} /\d/', r'"/\\d/"5', [rf'"/\\d/"{ARABIC_5}']),
    (r'start: %regex {"substring_chars": "/\\d/"} /\d/', r"\d5", [rf"\d{ARABIC_5}"]),
    ('%llguidance {"no_forcing": true}\nstart: /\\d/', "5", [ARABIC_5]),
    (r'start: "x"i /\d/ | /\w/', "X5", [E_ACUTE]),
]


@pytest.mark.parametrize(("grammar", "text", "others"), GRAMMARS)
def test_the_regexes_of_lark_do_too_and_nothing_else_of_it_is_changed(
    grammar: str, text: str, others: list[str]
) -> None:
    assert fits(text, grammar=grammar)
    assert [other for other in others if fits(other, grammar=grammar)] == []


def test_a_pattern_of_a_json_schema_has_them_already() -> None:
    schema = {"type": "string", "pattern": r"^\d\w$"}
    assert fits('"5a"', json=schema)
    assert not fits(f'"{ARABIC_5}a"', json=schema)


@pytest.mark.parametrize("space", [" ", "\t", NO_BREAK, "\u2003", "\u2028", "\u3000"])
@pytest.mark.parametrize(("pattern", "is_space"), [(r"^\s$", True), (r"^\S$", False), (r"^[^\s]$", False)])
def test_a_space_of_a_pattern_is_what_validators_take_for_one(pattern: str, space: str, *, is_space: bool) -> None:
    """ECMA-262, which JSON Schema's patterns are of, has the white space of Unicode in `\\s`."""
    schema = {"type": "string", "pattern": pattern}
    assert jsonschema_rs.validator_for(schema).is_valid(space) is is_space
    assert fits(json.dumps(space, ensure_ascii=False), json=schema) is is_space


@pytest.mark.parametrize(
    "regex",
    [r"[\d-z]", r"[+-\d]", r"[\w-.]", r"[\d", r"(\d", r"\d)", r"\bx\b", r"[\b]", "[", "[^", "(?", r"[a-\d"],
)
def test_what_is_no_regex_is_still_refused(regex: str) -> None:
    with pytest.raises(InvalidRequestError, match="The regex cannot be used"):
        check_grammar(StructuredOutput(regex=regex))


@given(st.text(alphabet="\\dDwWsSbu()[]?:-^&~#x/\"'%{} \n5a", max_size=30))
def test_no_text_is_too_odd_to_be_written(text: str) -> None:
    assert ascii_regex(ascii_regex(text)) == ascii_regex(text)
    ascii_lark(text)


def test_deep_classes_need_no_stack() -> None:
    assert ascii_regex("[" * 50_000 + r"\d") == "[" * 50_000 + "0-9"
