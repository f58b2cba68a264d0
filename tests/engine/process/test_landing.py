"""Tests of requests on their way into the engine: the most urgent first, tenants in turn, some between two steps."""

from __future__ import annotations

from dataclasses import replace

from engine.params import SamplingParams
from engine.process.landing import ADDED_AT_ONCE, Landing
from engine.scheduling.request import NewRequest
from tests.engine.builders import new_request


def request(request_id: int, *, tenant: str = "a", priority: int = 1) -> NewRequest:
    return replace(new_request(request_id, [1], SamplingParams()), tenant=tenant, priority=priority)


def test_what_is_urgent_waits_for_no_line_of_thousands() -> None:
    added: list[int] = []
    landing = Landing(lambda new: added.append(new.request_id))
    landing.put(request(number) for number in range(5000))
    landing.add_some()
    assert added == list(range(ADDED_AT_ONCE))
    landing.put([request(9999, priority=0)])
    landing.add_some()
    assert added[ADDED_AT_ONCE] == 9999
    assert len(landing) == 5000 - 2 * ADDED_AT_ONCE + 1


def test_tenants_of_a_class_take_turns() -> None:
    added: list[int] = []
    landing = Landing(lambda new: added.append(new.request_id))
    landing.put(request(number) for number in range(5000))
    landing.add_some()
    landing.put(request(number, tenant="b") for number in range(9000, 9100))
    landing.add_some()
    assert sum(number >= 9000 for number in added) == 100
    while landing:
        landing.add_some()
    assert sorted(added) == [*range(5000), *range(9000, 9100)]
    assert [number for number in added if number < 5000] == list(range(5000)), "a tenant's own keep their order"


def test_what_is_to_be_aborted_is_added_at_once_and_never_twice() -> None:
    added: list[int] = []
    landing = Landing(lambda new: added.append(new.request_id))
    landing.put(request(number) for number in range(3))
    landing.add_now([2, 7])
    landing.add_some()
    landing.add_some()
    assert added == [2, 0, 1]
    assert not landing


def test_an_id_that_waits_already_is_the_engines_to_refuse() -> None:
    added: list[int] = []
    landing = Landing(lambda new: added.append(new.request_id))
    landing.put([request(1), request(1)])
    landing.add_some()
    assert added == [1, 1]
