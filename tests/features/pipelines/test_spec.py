"""Tests of definitions: what is allowed, and refusals with their place and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from features.pipelines.spec import MAX_STEPS, parse_definition
from jobs.errors import InputError


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


def _grouped(*columns: str) -> dict[str, Any]:
    return {"step": "fields", "group_by": list(columns)}


_NEW = {"store": "documents", "keys": "in/*.jsonl", "take": "new_since_last_success"}


@pytest.mark.parametrize(
    ("given", "place", "said"),
    [
        ({}, "steps", "it is missing; give it"),
        ({"steps": []}, "steps", "give at least 1"),
        ({"steps": [step(str(n)) for n in range(MAX_STEPS + 1)]}, "steps", "give at most 20"),
        ({"steps": [step(colour="red")]}, "steps.0.colour", "there is no such field"),
        ({"steps": [step(source={"store": "a", "keys": "../b"})]}, "steps.0.source.keys", "without a leading /"),
        ({"steps": [step(source={"store": "a", "keys": "/etc/*"})]}, "steps.0.source.keys", "without a leading /"),
        ({"steps": [step(source={"store": "a", "keys": "{today}/*"})]}, "steps.0.source.keys", "{today} is not known"),
        ({"steps": [step(source={"store": "a", "keys": "{date/*"})]}, "steps.0.source.keys", "braces do not match"),
        ({"steps": [step(source={"store": "a"})]}, "steps.0.source", "give keys too"),
        ({"steps": [step(source={})]}, "steps.0.source", "give exactly one of store"),
        ({"steps": [step(source={"store": "../x", "keys": "a"})]}, "steps.0.source.store", "give 1 to 63 characters"),
        ({"steps": [step(output={"store": "a", "keys": "b/out.jsonl"})]}, "steps.0.output.keys", "needs {n}"),
        ({"steps": [step(output={"store": "a", "keys": "part-{n}.jsonl"})]}, "steps.0.output.keys", "their own folder"),
        (
            {"steps": [step(output={"store": "a", "keys": "b/part-{n}.xlsx"})]},
            "steps.0.output",
            "end them with .jsonl, .csv or .parquet, or give a format",
        ),
        ({"steps": [step(output=None)]}, "steps", "no step has an output"),
        ({"steps": [step(), step()]}, "steps.1.name", "steps.1.name: 'fields' names an earlier step"),
        (
            {"steps": [step(source={"step": "fields"})]},
            "steps.0.source.step",
            "steps.0.source.step: 'fields' is not an earlier step",
        ),
        (
            {"steps": [step(), step("b")]},
            "steps.1.output.keys",
            "steps.1.output.keys: they lie in the folder of step 'fields'",
        ),
        ({"steps": [step(source=_NEW)]}, "steps.0.output.keys", "put {run} into the folder"),
        (
            {"steps": [step(source=_NEW, output=None), step("b", source={"step": "fields"})]},
            "steps.1.output.keys",
            "steps.1.output.keys: its rows are taken once",
        ),
        (
            {"steps": [step(source={"store": "a", "keys": "b", "group_by": ["x"]})]},
            "steps.0.source",
            "give step in place of store",
        ),
        ({"steps": [step(), step("b", source=_grouped("rows"))]}, "steps.1.source", "group_by has 'rows'"),
        ({"steps": [step(), step("b", source=_grouped("x", "x"))]}, "steps.1.source", "names a column twice"),
        ({"steps": [step(), step("b", source=_grouped())]}, "steps.1.source.group_by", "give at least 1"),
        (
            {"steps": [step(parameters={"model": "x"})]},
            "steps.0.parameters",
            "may be no 'model' among them: model, prompt",
        ),
        (
            {"steps": [step(parameters={"n": 2})]},
            "steps.0.parameters",
            "may be no 'n' among them: a row has one answer",
        ),
        ({"steps": [step(parameters="x")]}, "steps.0.parameters", "give a mapping of fields (given: 'x')"),
        ({"steps": [step(source="documents")]}, "steps.0.source", "give a mapping of fields (given: 'documents')"),
        ({"steps": [step(priority="high")]}, "steps.0.priority", "give 'urgent', 'normal' or 'bulk' (given: 'high')"),
        (
            {"steps": [step(output={"store": "a", "keys": "{n}/p-{n}.csv"})]},
            "steps.0.output.keys",
            "only in its last part",
        ),
        (
            {"steps": [step(output={"store": "a", "keys": "o/*-{n}.csv"})]},
            "steps.0.output.keys",
            "* and ? are for sources",
        ),
        ({"steps": [step(output={"store": "a", "keys": ".o/{n}.csv"})]}, "steps.0.output.keys", "begin with a dot"),
        (
            {"steps": [step(output={"store": "a", "keys": "_temporary/{n}.csv"})]},
            "steps.0.output.keys",
            "be _temporary",
        ),
        (
            {"steps": [step(output={"store": "a", "keys": "o/{n}.jsonl", "format": "csv"})]},
            "steps.0.output",
            "its keys end in .jsonl and its format is csv; leave the format out",
        ),
        ({"steps": [step(completion_window="1s")]}, "steps.0.completion_window", "Give minutes, hours or days"),
        ({"steps": [step(prompt="")]}, "steps.0.prompt", "it is empty"),
        ({"steps": [step()], "max_tokens": 0}, "max_tokens", "give 1 or more (given: 0)"),
        ({"steps": [step()], "max_cost": "cheap"}, "max_cost", "give an amount as a text, such as '2.50'"),
        ({"steps": [step(prompt="x" * 300_000)]}, "steps.0.prompt", "give at most 262,144 characters"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_place(given: dict[str, Any], place: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_definition(given)
    assert refused.value.param == place
    assert said in refused.value.message
    assert len(refused.value.message) < 600
