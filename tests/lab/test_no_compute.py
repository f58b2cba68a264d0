from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.outputs import FinishReason
from engine.params import SamplingParams
from engine.process import child
from engine.process.parent import EngineProcess
from engine.scheduling.request import NewRequest
from engine.thoughts import parted
from engine.tokenizer import load_tokenizer
from lab import no_compute
from lab.no_compute.engine import EchoEngine
from lab.no_compute.stated import StatedEngine, stating
from tests.e2e.thinking_demo import make_thinking_demo
from tests.workers.thinking.builders import prepare

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


def test_a_stated_answer_may_have_thoughts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in no_compute.environment(is_stated=True).items():
        monkeypatch.setenv(name, value)
    model = make_thinking_demo(tmp_path / "demo")
    tokenizer: Any = load_tokenizer(model)
    asked = [{"role": "user", "content": stating("<think>Hm.</think>Yes")}]
    line = prepare(tokenizer, messages=asked)
    new = NewRequest(request_id=1, prompt_token_ids=line.prompts[0], params=line.params)
    answer = StatedEngine(EngineConfig(model=str(model))).answer_to(new)
    assert line.params.thoughts is not None
    parts = parted(answer, line.params.thoughts)
    assert (tokenizer.decode(parts.thoughts), tokenizer.decode(parts.answer)) == ("Hm.", "Yes")


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
