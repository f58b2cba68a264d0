"""Tests of the due graphs that a control worker continues, and of their concurrency."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.graphs.due import Due
from workers.turns.tenant_turns import MAX_AT_ONCE, TenantTurns


class HeldGraphs:
    """Due graphs, and work on each of them that lasts until it is released."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.begun: list[str] = []
        self._due = {graph_id: Due(id=graph_id, tenant_id=graph_id[0]) for graph_id in ids}
        self._released: set[str] = set()
        self._changed = threading.Condition()

    def find(self, _: Session) -> list[Due]:
        with self._changed:
            return list(self._due.values())

    def advance(self, graph_id: str) -> bool:
        with self._changed:
            del self._due[graph_id]  # claimed
            self.begun.append(graph_id)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: graph_id in self._released, timeout=60)
        return True

    def release(self, *graph_ids: str) -> None:
        with self._changed:
            self._released.update(graph_ids)
            self._changed.notify_all()

    def until_begun(self, number: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= number, timeout=60), self.begun
            return list(self.begun)


@pytest.fixture
def graphs() -> HeldGraphs:
    return HeldGraphs(["a1", "a2", "a3", "b1", "b2", "c1", "d1", "d2", "e1", "e2"])


@pytest.fixture
def turns(maker: sessionmaker[Session], graphs: HeldGraphs) -> Iterator[TenantTurns]:
    turns = TenantTurns("graph", sessions=maker, find=graphs.find, advance=graphs.advance, look_seconds=0.01)
    turns.start()
    yield turns
    graphs.release(*(f"{tenant}{number}" for tenant in "abcde" for number in range(1, 4)))
    turns.stop()


@pytest.mark.usefixtures("turns")
def test_one_graph_of_each_tenant_goes_on_and_then_the_tenants_served_least_recently(graphs: HeldGraphs) -> None:
    assert sorted(graphs.until_begun(MAX_AT_ONCE)) == ["a1", "b1", "c1", "d1"]
    graphs.release("b1")
    assert graphs.until_begun(5)[4:] == ["e1"], "it was not served yet"
    graphs.release("a1", "d1")
    assert set(graphs.until_begun(7)[5:]) <= {"a2", "b2", "d2"}
    graphs.release("c1", "e1", "a2", "b2", "d2")
    assert sorted(graphs.until_begun(10)) == ["a1", "a2", "a3", "b1", "b2", "c1", "d1", "d2", "e1", "e2"]
