"""Tests of what a start on the CPU loads, and of its order of compiling: anything else would delay it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from engine import build
from engine.config import EngineConfig
from engine.loop import runner
from engine.models.decoder import Decoder
from engine.sampling.sampler import sample

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo_model"
STARTED = """
import json, sys
from engine.build import build_engine
from engine.config import EngineConfig
config = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 40, "warm_up": False}  # compiles nothing
engine = build_engine(EngineConfig(model="examples/demo_model", **config))
print(json.dumps(sorted({"transformers", "sympy", "torch._dynamo"} & set(sys.modules))))
"""


def test_an_engine_of_a_plain_model_loads_no_transformers() -> None:
    command = [sys.executable, "-c", STARTED]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == []


class Begun(Exception):
    """Ends a start once attention's compilation should have begun."""


def begun_by(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[tuple[Any, ...]]:
    """Start the demo model's engine up to where its dtype is decided; return what was begun to be compiled."""
    begun: list[tuple[Any, ...]] = []
    monkeypatch.setattr(build, "begin_to_compile_attention", lambda *arguments: begun.append(arguments))
    monkeypatch.setattr(build, "resolve", Mock(side_effect=Begun))
    with pytest.raises(Begun):
        build.build_engine(EngineConfig(model=str(DEMO), device="cpu", **settings))
    return begun


def test_attention_is_begun_to_be_compiled_before_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    # It takes as long as all other kernels; and which dtype is right is known only once some of them are compiled.
    assert begun_by(monkeypatch) == [(torch.bfloat16, torch.bfloat16, 32)]
    assert begun_by(monkeypatch, dtype="float32") == [(torch.float32, torch.float32, 32)]


def test_nothing_is_compiled_for_an_engine_that_does_not_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begun_by(monkeypatch, warm_up=False) == []


def test_sampling_is_compiled_while_the_layers_would_wait_for_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            ran.append(name)
            return function(*arguments)

        return run

    monkeypatch.setattr(Decoder, "forward", noted("layers", Decoder.forward))
    monkeypatch.setattr(runner, "sample", noted("sampler", sample))
    build.build_engine(EngineConfig(model=str(DEMO), device="cpu", dtype="float32", num_kv_blocks=40))
    assert ran[:3] == ["sampler", "sampler", "layers"]
