"""Test of adapters of our own engine in a running stack: claimed with their base, answered apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM, SamplingParams
from tests.e2e.builders import Customer
from tests.engine.models.lora import write_adapter

pytestmark = pytest.mark.long

DEMO_MODEL = Path(__file__).parents[2] / "examples" / "demo_model"
PROMPT = "Once upon a time"


def test_lines_of_a_base_and_two_adapters_get_the_tokens_of_each(shared_stack: Any, tmp_path: Path) -> None:
    folders = {name: write_adapter(tmp_path / name, DEMO_MODEL, seed=seed) for seed, name in enumerate(["low", "high"])}
    stack = shared_stack
    for name, folder in folders.items():
        added = stack.run(
            *("models", "add", name, "--base", "demo", "--adapter", str(folder), "--data-dir", str(stack.data_dir))
        )
        assert added.returncode == 0, added.stderr
    tenant = Customer(id="default", client=stack.client(), stack=stack)
    batches = {name: tenant.submit([line(name)], endpoint="/v1/completions") for name in ("demo", *folders)}
    answers = {}
    for name, batch_id in batches.items():
        (output,) = tenant.answers(batch_id, num_lines=1)
        answers[name] = output["response"]["body"]
    assert {name: body["model"] for name, body in answers.items()} == {name: name for name in batches}
    llm = LLM(DEMO_MODEL, num_kv_blocks=64, dtype=answers["demo"]["engine"]["dtype"])
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    expected = llm.generate([PROMPT] * 3, params, adapter=[None, *folders.values()])
    assert [body["choices"][0]["text"] for body in answers.values()] == [one.outputs[0].text for one in expected]
    for name in folders:
        removed = stack.run("models", "remove", name, "--data-dir", str(stack.data_dir))
        assert removed.returncode == 0, removed.stderr


def line(model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return {"custom_id": model, "method": "POST", "url": "/v1/completions", "body": body}
