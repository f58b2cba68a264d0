"""Tests of concurrent work while a grammar is compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.grammars.grammar import GrammarTokens
from engine.grammars.matcher import GrammarMatcher
from engine.outputs import TokenDelta
from engine.params import SamplingParams
from engine.structured import StructuredOutput
from tests.engine.builders import new_request
from tests.engine.grammars.builders import run_to_end, structured


class SlowGrammars:
    """Hold compilation up until `release` is set."""

    def __init__(self, compile_: Callable[[Any, StructuredOutput], GrammarMatcher]) -> None:
        self.release = threading.Event()
        self._compile = compile_

    def compile(self, tokens: GrammarTokens, structured: StructuredOutput) -> GrammarMatcher:
        assert self.release.wait(60.0)
        return self._compile(tokens, structured)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    slow = SlowGrammars(GrammarTokens.compile)

    def compile_(tokens: GrammarTokens, structured: StructuredOutput) -> GrammarMatcher:
        return slow.compile(tokens, structured)

    monkeypatch.setattr(GrammarTokens, "compile", compile_)
    yield slow
    slow.release.set()


def test_other_requests_run_while_a_grammar_is_compiled(grammar_model: Path, slow: SlowGrammars) -> None:
    engine = build_engine(EngineConfig(model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False))
    engine.add(new_request(1, [5, 6, 7], params=structured(choice=["yes", "no"])))
    engine.add(new_request(2, [5, 6, 7], params=SamplingParams(max_tokens=5, ignore_eos=True)))
    ended: list[TokenDelta] = []
    while not ended:
        ended = [delta for delta in engine.step() if delta.finish_reason is not None]
    assert [delta.request_id for delta in ended] == [2]
    assert engine.has_work
    assert engine.stats().load.num_waiting == 1
    assert engine.step() == []
    slow.release.set()
    assert [delta.finish_reason for delta in run_to_end(engine) if delta.finish_reason] == ["stop"]


def test_a_request_can_be_aborted_while_its_grammar_is_compiled(grammar_model: Path, slow: SlowGrammars) -> None:
    engine = build_engine(EngineConfig(model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False))
    engine.add(new_request(1, [5, 6, 7], params=SamplingParams(n=2, structured=StructuredOutput(choice=["yes", "no"]))))
    engine.abort([1])
    assert [(delta.index, delta.finish_reason) for delta in run_to_end(engine)] == [(0, "abort"), (1, "abort")]
    slow.release.set()
    assert not engine.has_work


@pytest.mark.parametrize("index", [0, 1])
def test_one_child_can_be_aborted_while_its_grammar_is_compiled(
    index: int, grammar_model: Path, slow: SlowGrammars
) -> None:
    engine = build_engine(EngineConfig(model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False))
    engine.add(new_request(1, [5, 6, 7], params=SamplingParams(n=2, structured=StructuredOutput(choice=["yes", "no"]))))
    engine.abort_children([(1, index), (1, index), (1, 7), (9, 0)])
    assert [(delta.index, delta.finish_reason) for delta in engine.step()] == [(index, "abort")]
    slow.release.set()
    ended = [delta for delta in run_to_end(engine) if delta.finish_reason is not None]
    assert [(delta.index, delta.finish_reason) for delta in ended] == [(1 - index, "stop")]


def test_a_slow_grammar_fails_its_own_request_only(grammar_model: Path, slow: SlowGrammars) -> None:
    config = EngineConfig(
        model=str(grammar_model), dtype="float32", num_kv_blocks=64, warm_up=False, grammar_timeout_seconds=1e-9
    )
    engine = build_engine(config)
    engine.add(new_request(1, [5, 6, 7], params=structured(choice=["yes", "no"])))
    engine.add(new_request(2, [5, 6, 7], params=SamplingParams(max_tokens=5, ignore_eos=True)))
    ended = {delta.request_id: delta for delta in run_to_end(engine) if delta.finish_reason is not None}
    assert ended[1].finish_reason == "error"
    assert str(ended[1].error).startswith("The grammar was not compiled within 1e-09 s")
    assert ended[2].finish_reason == "length"
