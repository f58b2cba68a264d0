"""Grammars that are costly to follow: nobody looks for a long text at once, and no sensible grammar is refused for it.

Counted in what llguidance found, never in time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.grammars import grammar
from engine.grammars.grammar import FIRST_STEP_FUEL, GrammarTokens, MaskFiller
from engine.grammars.matcher import MAX_FIRST_BYTES
from engine.llm import LLM
from engine.outputs import CompletionOutput
from engine.structured import StructuredOutput
from tests.engine.grammars.builders import VOCAB_SIZE, structured

LONG = "[ab](a{1000}){1000}"
"""After its first letter a million more must follow."""


TOO_MUCH = "(([a-z ]{1,20}){1,20}){1,20}"
"""llguidance follows some tokens of it, and then none of any text."""


@pytest.fixture(scope="module")
def tokens(grammar_model: Path) -> GrammarTokens:
    tokens = GrammarTokens(grammar_model, vocab_size=VOCAB_SIZE, eos_token_ids=(0,))
    tokens.load()
    return tokens


def token_ids(tokens: GrammarTokens, text: str) -> list[int]:
    found: list[int] = tokens._tokens.tokenize_str(text)
    return found


class Counting:
    """Note how many bytes llguidance has found, whenever it looks for what must follow."""

    def __init__(self, inner: Any, found: list[int]) -> None:
        self._inner = inner
        self._found = found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def compute_ff_tokens(self) -> Any:
        forced = self._inner.compute_ff_tokens()
        self._found.append(len(self._inner.compute_ff_bytes()))
        return forced


@pytest.mark.parametrize("regex", [LONG, "a[bc](d{400}){300}", '"(x|y(z{300}){300})"'])
def test_little_of_a_long_text_is_looked_for_at_once(tokens: GrammarTokens, regex: str) -> None:
    matcher = tokens.compile(StructuredOutput(regex=regex))
    found: list[int] = []
    matcher.inner = Counting(matcher.inner, found)
    start = {"[": "a", "a": "ab", '"': '"y'}[regex[0]]
    for token_id in token_ids(tokens, start):
        matcher.inner.compute_bitmask()  # as before every token that is sampled
        assert matcher.accept(token_id)
        matcher.forced_tokens()
    assert matcher.error is None
    assert max(found) <= FIRST_STEP_FUEL


@pytest.mark.parametrize("regex", ["(a{1000}){1000}", f"[bc]?{'a' * 30_000}"])
def test_a_long_text_that_comes_first_is_not_cut_into_tokens(tokens: GrammarTokens, regex: str) -> None:
    matcher = tokens.compile(StructuredOutput(regex=regex)).copy()
    for token_id in token_ids(tokens, "a" * 300):
        assert len(matcher.forced_tokens()) <= MAX_FIRST_BYTES
        assert matcher.accept(token_id)
    assert matcher.forced_tokens() == []


def test_a_line_goes_on_with_a_long_text_token_by_token(llm: LLM) -> None:
    long, other = llm.generate(["hello"] * 2, [structured(1, max_tokens=9, regex=LONG), structured(1, choice=["yes"])])
    (output,) = long.outputs
    assert (output.finish_reason, output.error, len(output.token_ids)) == ("length", None, 9)
    assert re.fullmatch("[ab]a+", output.text)
    assert other.outputs[0].text == "yes"


@pytest.fixture
def unforced(tokens: GrammarTokens, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with every form without forced tokens that is compiled."""
    compiled: list[str] = []
    compile_unforced = tokens._unforced

    def counted(source: str) -> Any:
        compiled.append(source)
        return compile_unforced(source)

    monkeypatch.setattr(tokens, "_unforced", counted)
    return compiled


def test_the_form_without_forced_tokens_is_compiled_once_and_when_it_is_needed(
    tokens: GrammarTokens, unforced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "MAX_STALL_SECONDS", 1e9)
    matcher = tokens.compile(StructuredOutput(regex="[ab]+"))
    copies = [matcher.copy(), matcher.copy(), matcher.copy().copy()]
    assert unforced == []
    for copy in copies:
        assert copy.accept(*token_ids(tokens, "a"))
        assert copy.fall_back()
        assert not copy.fall_back()
        assert copy.accept(*token_ids(tokens, "b"))
    assert len(unforced) == 1


def test_a_grammar_that_takes_long_gets_both_forms_before_it_starts(
    tokens: GrammarTokens, unforced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar, "MAX_STALL_SECONDS", -1.0)
    matcher = tokens.compile(StructuredOutput(regex="[ab]+"))
    assert len(unforced) == 1
    assert matcher.copy().fall_back()
    assert len(unforced) == 1


def test_a_pattern_that_needs_more_work_at_a_token_is_kept(tokens: GrammarTokens) -> None:
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,99}\S+$", "maxLength": 300}
    matcher = tokens.compile(StructuredOutput(json=words)).copy()
    filler, mask = MaskFiller(), np.zeros((1, -(-VOCAB_SIZE // 32)), dtype=np.int32)
    written = token_ids(tokens, '"The invoice is late and the total is paid"')
    for token_id in written:
        filler.fill([(matcher, 0, [])], mask)
        assert matcher.error is None
        assert mask[0, token_id // 32] >> token_id % 32 & 1
        assert matcher.accept(token_id)
    assert matcher.accept(0)


def test_the_output_of_an_earlier_run_costs_no_more_than_its_tokens_did(tokens: GrammarTokens) -> None:
    """So that after it the same tokens are forced as in a run that was not ended."""
    matcher = tokens.compile(StructuredOutput(regex="[a-c]{15000}END")).copy()
    assert matcher.replay(token_ids(tokens, "abc" * 5000))
    assert tokens._tokens.decode_str(matcher.forced_tokens()) == "END"


def test_a_line_that_outgrows_what_the_library_follows_ends_no_later_one(llm: LLM) -> None:
    def answer(max_tokens: int) -> CompletionOutput:
        [output] = llm.generate(["hello"], structured(1, max_tokens=max_tokens, regex=TOO_MUCH))
        return output.outputs[0]

    assert answer(2).error is None
    assert "expressions" in str(answer(200).error)
    assert answer(2).error is None


def test_a_line_that_meets_a_limit_ends_no_other_of_the_same_grammar(tokens: GrammarTokens) -> None:
    compiled = tokens.compile(StructuredOutput(regex="[a-c]{15000}END|[a-c]{3}"))
    costly, ended, started = compiled.copy(), compiled.copy(), compiled.copy()
    assert all(map(ended.accept, token_ids(tokens, "abc")))
    assert all(map(started.accept, token_ids(tokens, "ab")))
    for token_id in token_ids(tokens, "abc" * 5000):
        costly.inner.consume_tokens([token_id])  # with no mask in between, which would give it fuel anew
    assert costly.error is not None
    assert ended.accept(0)
    assert all(map(started.accept, [*token_ids(tokens, "c"), 0]))
    assert all(map(compiled.copy().accept, [*token_ids(tokens, "abc"), 0]))
