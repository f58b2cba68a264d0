"""Tests of the due flows that a control worker continues, and of their concurrency."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.rows.templates.warm import KEPT
from flows.due import Due
from workers.turns.flow_turns import FRESH_SECONDS, FRESH_TIMES, MAX_AT_ONCE, FlowTurns

NEVER = 10_000.0
"""Poll interval in seconds: so long that every poll has another reason."""


class HeldFlows:
    """Due flows, and work on each of them that lasts until it is released."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.begun: list[str] = []
        self.num_finds = 0
        self._due = {flow_id: Due(id=flow_id, tenant_id=flow_id[0], recipe=flow_id[1:-1]) for flow_id in ids}
        self._released: set[str] = set()
        self._changed = threading.Condition()

    def find(self, _: Session) -> list[Due]:
        with self._changed:
            self.num_finds += 1
            return list(self._due.values())

    def advance(self, due: Due) -> bool:
        flow_id = due.id
        with self._changed:
            del self._due[flow_id]  # claimed
            self.begun.append(flow_id)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: flow_id in self._released, timeout=60)
        return True

    def release(self, *flow_ids: str) -> None:
        with self._changed:
            self._released.update(flow_ids)
            self._changed.notify_all()

    def until_begun(self, number: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= number, timeout=60), self.begun
            return list(self.begun)


FIRST = [f"{tenant}1" for tenant in "abcdefghi"]
LATER = ["a2", "a3", "b2", "d2", "i2"]


@pytest.fixture
def flows() -> HeldFlows:
    return HeldFlows([*FIRST, *LATER])


@pytest.fixture
def turns(maker: sessionmaker[Session], flows: HeldFlows) -> Iterator[FlowTurns]:
    turns = FlowTurns(sessions=maker, find=flows.find, advance=flows.advance, look_seconds=0.01)
    turns.start()
    yield turns
    flows.release(*FIRST, *LATER)
    turns.stop()


@pytest.mark.usefixtures("turns")
def test_one_flow_of_each_tenant_goes_on_and_then_the_tenants_served_least_recently(flows: HeldFlows) -> None:
    assert sorted(flows.until_begun(MAX_AT_ONCE)) == FIRST[:MAX_AT_ONCE]
    flows.release("b1")
    assert flows.until_begun(MAX_AT_ONCE + 1)[MAX_AT_ONCE:] == ["i1"], "it was not served yet"
    flows.release("a1", "d1")
    assert set(flows.until_begun(MAX_AT_ONCE + 3)[MAX_AT_ONCE + 1 :]) <= {"a2", "b2", "d2"}
    flows.release(*FIRST, "a2", "b2", "d2")
    assert sorted(flows.until_begun(len(FIRST) + len(LATER))) == sorted([*FIRST, *LATER])


def test_flows_of_another_recipe_of_the_same_tenant_do_not_wait(maker: sessionmaker[Session]) -> None:
    flows = HeldFlows(["a-index-1", "a-index-2", "a-run-1", "a-run-2"])
    turns = FlowTurns(sessions=maker, find=flows.find, advance=flows.advance, look_seconds=0.01)
    turns.start()
    try:
        assert sorted(flows.until_begun(2)) == ["a-index-1", "a-run-1"]
    finally:
        flows.release("a-index-1", "a-index-2", "a-run-1", "a-run-2")
        turns.stop()


def test_what_one_poll_has_found_is_begun_without_another_until_it_is_old(
    maker: sessionmaker[Session], flows: HeldFlows
) -> None:
    now = 0.0
    turns = FlowTurns(sessions=maker, find=flows.find, advance=flows.advance, look_seconds=NEVER, monotonic=lambda: now)
    turns.start()
    flows.until_begun(MAX_AT_ONCE)
    for number, (ended, then) in enumerate((("b1", "i1"), ("d1", "b2"), ("i1", "d2"), ("c1", "i2")), start=1):
        flows.release(ended)
        assert flows.until_begun(MAX_AT_ONCE + number)[-1] == then
    assert flows.num_finds == 1
    now = FRESH_SECONDS
    flows.release("a1")
    flows.until_begun(MAX_AT_ONCE + 5)
    assert flows.num_finds == 2
    flows.release(*FIRST, *LATER)
    turns.stop()


def test_what_a_slow_poll_has_found_is_begun_for_longer(maker: sessionmaker[Session], flows: HeldFlows) -> None:
    poll_seconds = FRESH_SECONDS / 2
    now = 0.0

    def find(session: Session) -> list[Due]:
        nonlocal now
        now += poll_seconds
        return flows.find(session)

    turns = FlowTurns(sessions=maker, find=find, advance=flows.advance, look_seconds=NEVER, monotonic=lambda: now)
    turns.start()
    flows.until_begun(MAX_AT_ONCE)
    now += (FRESH_TIMES - 1) * poll_seconds
    flows.release("b1")
    flows.until_begun(MAX_AT_ONCE + 1)
    assert flows.num_finds == 1
    now += poll_seconds
    flows.release("d1")
    flows.until_begun(MAX_AT_ONCE + 2)
    assert flows.num_finds == 2
    flows.release(*FIRST, *LATER)
    turns.stop()


def test_a_flow_that_another_worker_has_keeps_no_other_from_its_turn(maker: sessionmaker[Session]) -> None:
    ids = [f"{tenant}1" for tenant in "abcdefghijklmnop"]
    flows = HeldFlows(ids)

    def elsewhere(due: Due) -> bool:
        flows.advance(due)
        return False

    turns = FlowTurns(sessions=maker, find=flows.find, advance=elsewhere, look_seconds=NEVER)
    turns.start()
    flows.until_begun(MAX_AT_ONCE)
    for number, flow_id in enumerate(ids[:-MAX_AT_ONCE], start=1):
        flows.release(flow_id)
        assert flows.until_begun(MAX_AT_ONCE + number)[-1] == ids[MAX_AT_ONCE + number - 1]
    flows.release(*ids)
    turns.stop()
    assert flows.num_finds == 1, "another poll would find the same ones again"


def test_no_run_that_is_advanced_ends_a_warm_renderer_that_the_next_one_could_fork() -> None:
    assert KEPT >= MAX_AT_ONCE
