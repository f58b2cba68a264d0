"""What a definition may say, and how a wrong one is refused: with its place and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import InputError
from jobs.pipelines.spec import MAX_STEPS, parse_definition


def step(name: str = "fields", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"store": "documents", "keys": "in/{date}/*.jsonl"},
        "prompt": "{{ text }}",
        "model": "demo",
        "output": {"store": "results", "keys": "{pipeline}/{date}/part-{n}.jsonl"},
    } | fields


def test_a_good_definition_is_read_with_its_defaults() -> None:
    definition = parse_definition({"steps": [step()], "max_tokens": 1000, "max_cost": "1.50"})
    assert definition.steps[0].completion_window == "24h"
    assert definition.steps[0].priority == "bulk"


_NEW = {"store": "documents", "keys": "in/*.jsonl", "take": "new_since_last_success"}


@pytest.mark.parametrize(
    ("given", "place", "said"),
    [
        ({}, "steps", "Field required"),
        ({"steps": []}, "steps", "at least 1 item"),
        ({"steps": [step(str(n)) for n in range(MAX_STEPS + 1)]}, "steps", "at most 20 items"),
        ({"steps": [step(colour="red")]}, "steps.0.colour", "there is no such field"),
        ({"steps": [step(source={"store": "a", "keys": "../b"})]}, "steps.0.source.keys", "without a leading /"),
        ({"steps": [step(source={"store": "a", "keys": "/etc/*"})]}, "steps.0.source.keys", "without a leading /"),
        ({"steps": [step(source={"store": "a", "keys": "{today}/*"})]}, "steps.0.source.keys", "{today} is not known"),
        ({"steps": [step(source={"store": "a", "keys": "{date/*"})]}, "steps.0.source.keys", "braces do not match"),
        ({"steps": [step(source={"store": "a"})]}, "steps.0.source", "give keys too"),
        ({"steps": [step(source={})]}, "steps.0.source", "give either store, with keys, or step"),
        ({"steps": [step(source={"store": "../x", "keys": "a"})]}, "steps.0.source.store", "give 1 to 63 characters"),
        ({"steps": [step(output={"store": "a", "keys": "b/out.jsonl"})]}, "steps.0.output.keys", "needs {n}"),
        ({"steps": [step(output={"store": "a", "keys": "part-{n}.jsonl"})]}, "steps.0.output.keys", "folder of their"),
        (
            {"steps": [step(output={"store": "a", "keys": "b/part-{n}.parquet"})]},
            "steps.0.output",
            "Parquet is read only",
        ),
        ({"steps": [step(output=None)]}, "steps", "no step has an output"),
        ({"steps": [step(), step()]}, "steps", "steps.1.name: 'fields' names an earlier step"),
        ({"steps": [step(source={"step": "fields"})]}, "steps", "steps.0.source.step: 'fields' is no earlier step"),
        ({"steps": [step(), step("b")]}, "steps", "steps.1.output.keys: they lie in the folder of step 'fields'"),
        ({"steps": [step(source=_NEW)]}, "steps", "put {run} into the folder"),
        (
            {"steps": [step(source=_NEW, output=None), step("b", source={"step": "fields"})]},
            "steps",
            "steps.1.output.keys: its rows are taken once",
        ),
        ({"steps": [step(parameters={"model": "x"})]}, "steps.0", "parameters may not have 'model'"),
        ({"steps": [step(completion_window="1s")]}, "steps.0.completion_window", "Give minutes, hours or days"),
        ({"steps": [step(prompt="")]}, "steps.0.prompt", "at least 1 character"),
        ({"steps": [step()], "max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"steps": [step()], "max_cost": "cheap"}, "max_cost", "match pattern"),
        ({"steps": [step(prompt="x" * 300_000)]}, "steps.0.prompt", "at most 262144"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_place(given: dict[str, Any], place: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_definition(given)
    assert refused.value.param == place
    assert said in refused.value.message
    assert len(refused.value.message) < 600
