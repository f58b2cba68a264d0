"""Tests of steps over the groups of an earlier one."""

from __future__ import annotations

from typing import Any

import pytest

from features.pipelines.rows.lines import grouping
from features.pipelines.states import RunState
from tests.features.pipelines.work.run_builders import House, step


def grouping_step(**fields: Any) -> dict[str, Any]:
    given = {
        "name": "groups",
        "source": {"step": "fields", "group_by": ["vendor"]},
        "prompt": "{{ vendor }} {{ num_rows }}:{% for each in rows %} {{ each.text }}={{ each.length }}{% endfor %}",
        "output": {"store": "results", "keys": "groups/part-{n}.jsonl"},
    }
    return step(**given | fields)


def test_a_step_over_groups_shows_its_prompt_all_answered_rows_of_each(house: House) -> None:
    house.fails = {"Measure bad"}
    rows = [("one", "Ada"), ("two", "Bob"), ("bad", "Ada"), ("three", "Ada")]
    house.put("in/a.jsonl", *({"text": text, "vendor": vendor} for text, vendor in rows), {"text": "nobody's"})
    run = house.finish(house.trigger(house.make(steps=[step(output=None), grouping_step()])))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)
    [groups] = house.out("groups").values()
    prompts = ["Ada 2: one=11 three=13", "Bob 1: two=11", "none 1: nobody's=16"]
    assert groups == [
        {"vendor": vendor, "num_rows": size, "length": len(prompt), "error": None}
        for (vendor, size), prompt in zip([("Ada", 2), ("Bob", 1), (None, 1)], prompts, strict=True)
    ]


def test_a_step_goes_on_with_the_groups_of_an_earlier_one(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one", "vendor": "Ada"}, {"text": "two", "vendor": "Ada"})
    prompt = "{{ vendor }} {{ num_rows }} {{ previous.json.length }}"
    last = step(name="last", source={"step": "groups"}, prompt=prompt)
    run = house.finish(house.trigger(house.make(steps=[step(output=None), grouping_step(output=None), last])))
    assert run.state == RunState.SUCCEEDED
    [[row]] = house.out().values()
    assert row == {"vendor": "Ada", "num_rows": 2, "length": len("Measure Ada 2 22") - len("Measure "), "error": None}


def test_a_run_that_groups_by_a_column_that_no_row_has_fails_and_says_which_there_are(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one", "seller": "Ada"})
    run = house.finish(house.trigger(house.make(steps=[step(output=None), grouping_step()])))
    assert run.state == RunState.FAILED
    assert run.reason == "no row has the column 'vendor' of group_by; there are: text, seller, length"


def test_a_group_that_no_prompt_may_see_is_a_row_with_an_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MAX_GROUP_BYTES", 100)
    house.put("in/a.jsonl", {"text": "one", "vendor": "Ada"}, *({"text": "x", "vendor": "Bob"} for _ in range(10)))
    run = house.finish(house.trigger(house.make(steps=[step(output=None), grouping_step()])))
    assert run.state == RunState.SUCCEEDED
    [[small, large]] = house.out("groups").values()
    assert (small["length"], small["error"]) == (len("Ada 1: one=11"), None)
    assert (large["vendor"], large["num_rows"]) == ("Bob", 10)
    assert "the 10 rows of this group have more than" in large["error"]


def test_a_run_fails_whatever_its_reason_names(house: House) -> None:
    house.put("in/a.jsonl", {"text": "one", "a\0b": "Ada"})
    run = house.finish(house.trigger(house.make(steps=[step(output=None), grouping_step()])))
    assert run.state == RunState.FAILED
    assert run.reason == "no row has the column 'vendor' of group_by; there are: text, a\ufffdb, length"
    house.put("in/a.jsonl", {"text": "one"} | {f"column {number}": number for number in range(1000)})
    run = house.finish(house.trigger(house.make(steps=[step(output=None), grouping_step()])))
    assert run.state == RunState.FAILED
    assert run.reason is not None
    assert (len(run.reason), run.reason[-1]) == (2000, "…")
