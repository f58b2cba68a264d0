"""Tests that a stored plan equals the original."""

from __future__ import annotations

import json

import orjson
import pytest

from features.documents.extraction.course.job import Passes
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.extraction.errors import ExtractionError

SCHEMA = json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in ("z", "a", "m")}})


def test_a_kept_plan_makes_the_same_job_with_its_fields_in_their_order() -> None:
    plan = StoredPlan(schema=SCHEMA, model="m", quotes=False, params={"temperature": 0.0}, max_fields=2)
    job = StoredPlan.from_bytes(plan.to_bytes()).job()
    assert job == plan.job()
    assert [[leaf.path for leaf in group.leaves] for group in job.groups] == [[("z",), ("a",)], [("m",)]]
    assert job.first_request(1, "Ash Ltd") == plan.job().first_request(1, "Ash Ltd")


def test_a_kept_plan_knows_how_long_prompts_may_be() -> None:
    plan = StoredPlan(schema=SCHEMA, model="m", context=4096)
    window = StoredPlan.from_bytes(plan.to_bytes()).job().window
    assert window is not None
    assert (window.max_tokens, window.count("Ash Ltd")) == (4096, 4)
    assert StoredPlan(schema=SCHEMA, model="m").job().window is None


def test_a_kept_plan_has_its_passes_and_names_its_version_by_them() -> None:
    passes = Passes(again=False, second_reading=True, cover=True)
    plain, kept = (StoredPlan(schema=SCHEMA, model="m", passes=one).to_bytes() for one in (Passes(), passes))
    assert StoredPlan.from_bytes(kept).job().passes == passes
    assert StoredPlan.from_bytes(plain).job().passes == Passes()
    assert [orjson.loads(one)["version"] for one in (plain, kept)] == [1, 2]
    assert "passes" not in orjson.loads(plain), "readers of the first version refuse what they do not know"


def test_a_plan_of_another_release_is_refused() -> None:
    kept = orjson.loads(StoredPlan(schema=SCHEMA, model="m").to_bytes())
    with pytest.raises(ExtractionError, match="another release"):
        StoredPlan.from_bytes(orjson.dumps(kept | {"version": 4}))
    with pytest.raises(ExtractionError, match="another release"):
        StoredPlan.from_bytes(orjson.dumps(kept | {"excerpt_rule": 4}))


def test_a_plan_keeps_the_rule_by_which_its_documents_are_shown() -> None:
    new = StoredPlan(schema=SCHEMA, model="m", context=4096)
    kept = orjson.loads(new.to_bytes())
    assert (kept["version"], kept.pop("excerpt_rule")) == (3, 3)
    for stored, rule in ((new.to_bytes(), 3), (orjson.dumps(kept | {"version": 1}), 1)):
        read = StoredPlan.from_bytes(stored)
        window = StoredPlan.from_bytes(read.to_bytes()).job().window
        assert window is not None
        assert window.excerpt_rule == rule
