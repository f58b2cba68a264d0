from __future__ import annotations

import ast
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.outputs import FinishReason
from engine.params import SamplingParams
from engine.process import child
from engine.process.parent import EngineProcess
from engine.scheduling.request import NewRequest
from lab import no_compute
from lab.no_compute.engine import EchoEngine

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo_model"


def test_an_engine_process_echoes_prompts_and_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in no_compute.environment(tokens_a_step=2).items():
        monkeypatch.setenv(name, value)
    engine = EngineProcess(EngineConfig(model=str(DEMO)))
    try:
        info = engine.start()
        assert info.dtype == "none"
        engine.add(
            NewRequest(request_id=1, prompt_token_ids=[7, 8, 9], params=SamplingParams(max_tokens=9)),
            NewRequest(request_id=2, prompt_token_ids=[4, 5, 6], params=SamplingParams(max_tokens=1, n=2)),
        )
        tokens, ends = _collect(engine, num_ends=3)
    finally:
        engine.close()

    assert tokens == {(1, 0): [7, 8, 9, *info.eos_token_ids], (2, 0): [4], (2, 1): [4]}
    assert ends == {(1, 0): FinishReason.STOP, (2, 0): FinishReason.LENGTH, (2, 1): FinishReason.LENGTH}


def test_the_engine_of_no_cost_has_all_that_its_process_asks_of_one() -> None:
    tree = ast.parse(Path(child.__file__).read_text(encoding="utf-8"))
    asked = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "engine"
    }
    assert {"step", "stats"} <= asked
    assert {name for name in asked if not hasattr(EchoEngine, name)} == {"info"}  # which its instances have


def _collect(
    engine: EngineProcess, *, num_ends: int
) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], FinishReason]]:
    tokens: dict[tuple[int, int], list[int]] = {}
    ends: dict[tuple[int, int], FinishReason] = {}
    while len(ends) < num_ends:
        progress = engine.poll(10.0)
        assert progress is not None
        for delta in progress.outputs:
            key = (delta.request_id, delta.index)
            tokens.setdefault(key, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                ends[key] = delta.finish_reason
    return tokens, ends
