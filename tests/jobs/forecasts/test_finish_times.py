"""Tests of forecasts against the real order of picking chunks, with classes, shares and running lines."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.chunks.fair_order import Queue, QueuedChunk, order
from jobs.forecasts.finish_times import BatchLoad, Forecast, forecast
from jobs.forecasts.sentences import standing
from jobs.states import Priority

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def load(
    batch_id: str,
    *,
    tenant: str = "t",
    ready: float = 0,
    leased: float = 0,
    leased_lines: int = 0,
    priority: Priority = Priority.NORMAL,
    weight: float = 1.0,
    virtual_time: float = 0.0,
    expires_after: int = 0,
) -> BatchLoad:
    return BatchLoad(
        batch_id=batch_id,
        tenant_id=tenant,
        priority=priority,
        weight=weight,
        virtual_time=virtual_time,
        expires_at=NOON + timedelta(seconds=expires_after),
        ready_tokens=ready,
        leased_tokens=leased,
        leased_lines=leased_lines,
    )


def by_id(loads: list[BatchLoad]) -> dict[str, Forecast]:
    return {found.batch_id: found for found in forecast(loads)}


def test_tenants_of_equal_weight_share_until_one_has_nothing_left() -> None:
    found = by_id([load("a", tenant="x", ready=100), load("b", tenant="y", ready=300)])
    assert (found["a"].tokens, found["b"].tokens) == (200, 400)
    assert (found["a"].share, found["b"].share) == (0.5, 0.5)


def test_twice_the_weight_is_served_twice_as_fast() -> None:
    found = by_id([load("a", tenant="x", ready=100, weight=2), load("b", tenant="y", ready=100)])
    assert (found["a"].tokens, found["b"].tokens) == (150, 200)
    assert found["a"].share == pytest.approx(2 / 3)


def test_batches_of_one_tenant_come_one_after_the_other_by_deadline() -> None:
    found = by_id([load("late", ready=100, expires_after=9), load("soon", ready=50)])
    assert (found["soon"].position, found["late"].position) == (0, 1)
    assert (found["soon"].tokens, found["late"].tokens) == (50, 150)
    assert found["late"].tokens_ahead == {Priority.NORMAL: 50}


def test_a_better_class_is_served_first_and_named() -> None:
    found = by_id(
        [
            load("n", tenant="x", ready=10),
            load("first", tenant="x", ready=7, expires_after=-1),
            load("u", tenant="y", ready=100, priority=Priority.URGENT),
            load("b", tenant="z", ready=5, priority=Priority.BULK),
        ]
    )
    assert found["n"].tokens_ahead == {Priority.URGENT: 100, Priority.NORMAL: 7}
    assert (found["n"].tokens, found["b"].tokens) == (117, 122)
    assert [found[name].position for name in ("u", "first", "n", "b")] == [0, 1, 2, 3]


def test_a_tenant_that_had_more_waits_until_the_others_are_level() -> None:
    found = by_id([load("a", tenant="x", ready=100, virtual_time=60), load("b", tenant="y", ready=100)])
    assert found["a"].tokens_ahead == {Priority.NORMAL: 60}
    assert (found["b"].tokens, found["a"].tokens) == (140, 200)


def test_what_waits_is_served_after_what_runs_and_taken_up_before_it() -> None:
    found = by_id([load("r", leased=120, leased_lines=4), load("w", tenant="y", ready=50)])
    assert (found["w"].tokens, found["w"].tokens_to_claim) == (170, 50)
    assert (found["r"].tokens, found["r"].tokens_to_claim) == (120, 0)
    assert (found["r"].position, found["r"].tokens_ahead) == (0, {})


def test_a_batch_that_runs_stands_behind_nobody_though_others_are_first() -> None:
    loads = [load("u", priority=Priority.URGENT, ready=100), load("n", ready=10, leased=5, leased_lines=1)]
    found = by_id(loads)["n"]
    assert (found.position, found.tokens_ahead, found.tokens) == (0, {}, 115)


@st.composite
def queues(draw: st.DrawFn) -> list[BatchLoad]:
    loads = []
    for tenant in range(draw(st.integers(1, 4))):
        shape: dict[str, Any] = {
            "tenant": str(tenant),
            "weight": draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])),
            "virtual_time": float(draw(st.integers(0, 40))),
            "priority": draw(st.sampled_from(list(Priority))),
        }
        for number in range(draw(st.integers(1, 4))):
            tokens = draw(st.integers(1, 30))
            loads.append(load(f"{tenant}-{number}", ready=tokens, expires_after=number, **shape))
    return loads


@given(queues())
def test_a_forecast_is_where_the_real_order_of_chunks_ends_but_for_a_chunk_a_tenant(loads: list[BatchLoad]) -> None:
    ends = dict.fromkeys([one.batch_id for one in loads], 0)
    owners = dict(zip(count(), (one.batch_id for one in loads for _ in range(int(one.ready_tokens))), strict=False))
    picked = order(_queues(loads, owners), now=NOON, limit=len(owners))
    for number, chunk_id in enumerate(picked, start=1):
        ends[owners[chunk_id]] = number
    weights = {one.tenant_id: one.weight for one in loads}.values()
    own = {one.batch_id: one.weight for one in loads}
    for found in forecast(loads):
        # A chunk of one token is 1 / weight of virtual time, in which each other tenant gets tokens by its weight;
        # chunks are picked whole.
        slack = sum(weight / own[found.batch_id] + 1 for weight in weights)
        assert abs(found.tokens - ends[found.batch_id]) <= slack


def _queues(loads: list[BatchLoad], owners: dict[int, str]) -> Iterable[Queue]:
    chunks: dict[str, list[QueuedChunk]] = {}
    for chunk_id, batch_id in owners.items():
        chunks.setdefault(batch_id, []).append(QueuedChunk(id=chunk_id, estimated_tokens=1))
    for tenant_id in sorted({one.tenant_id for one in loads}):
        own = [one for one in loads if one.tenant_id == tenant_id]
        yield Queue(
            tenant_id=tenant_id,
            priority=own[0].priority,
            weight=own[0].weight,
            virtual_time=own[0].virtual_time,
            waiting_since=NOON,
            chunks=[chunk for one in own for chunk in chunks[one.batch_id]],
        )


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            {"tokens_ahead": {Priority.NORMAL: 41_200.4}, "share": 1 / 3},
            "Behind 41,200 tokens of class normal; your share is 1/3 of 2 workers at 1,900 tokens/s.",
        ),
        (
            {"tokens_ahead": {Priority.URGENT: 5, Priority.BULK: 0.1}, "share": 0.4},
            "Behind 5 tokens of class urgent and 1 token of class bulk; your share is 40% of 2 workers at 1,900 "
            "tokens/s.",
        ),
        ({"tokens_ahead": {}, "share": 1.0}, None),
    ],
)
def test_what_is_before_a_batch_is_told_in_words(found: dict[str, object], sentence: str | None) -> None:
    values = {"batch_id": "b", "tokens": 1.0, "tokens_to_claim": 1.0, "position": 1, **found}
    assert standing(Forecast(**values), num_workers=2, tokens_per_second=1900.0) == sentence  # type: ignore[arg-type]  # by name
