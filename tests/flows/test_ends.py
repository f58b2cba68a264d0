"""Tests of when a flow is expected to end: by its slowest open node, and unknown rather than guessed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from flows.ends import FlowEnd, expected_end
from flows.tables import FlowNode
from jobs.tables import Batch

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
UNKNOWN = FlowEnd()


def node(name: str, *, num_lines: int, seconds: float, is_done: bool = False) -> FlowNode:
    begun_at = NOW - timedelta(seconds=seconds)
    done_at = NOW if is_done else None
    return FlowNode(flow_id="f", name=name, batch_id=name, num_lines=num_lines, begun_at=begun_at, done_at=done_at)


def batch(name: str, *, num_done: int, is_growing: bool = False) -> Batch:
    return Batch(id=name, num_completed=num_done, num_failed=0, is_growing=is_growing)


def seconds_left(end: FlowEnd) -> float:
    assert end.expected_at is not None
    return (end.expected_at - NOW).total_seconds()


def ended(*nodes: FlowNode, done: dict[str, int], is_last_begun: bool = True, share: float = 1.0) -> FlowEnd:
    batches = {name: batch(name, num_done=num_done, is_growing=share < 1) for name, num_done in done.items()}
    return expected_end(nodes, batches, is_last_begun=is_last_begun, share_begun=share, now=NOW)


def test_the_slowest_open_node_decides() -> None:
    nodes = (
        node("a", num_lines=100, seconds=50),
        node("b", num_lines=100, seconds=40),
        node("c", num_lines=9, seconds=9),
    )
    nodes[2].done_at = NOW
    end = ended(*nodes, done={"a": 50, "b": 20, "c": 9})
    assert seconds_left(end) == pytest.approx(160)
    assert end.earliest_at is not None
    assert end.latest_at is not None
    assert NOW < end.earliest_at < NOW + timedelta(seconds=160) < end.latest_at


def test_the_time_before_its_batch_was_valid_is_no_part_of_its_pace() -> None:
    of_batch = batch("a", num_done=50)
    of_batch.in_progress_at = NOW - timedelta(seconds=40)
    end = expected_end([node("a", num_lines=100, seconds=50)], {"a": of_batch}, is_last_begun=True, now=NOW)
    assert seconds_left(end) == pytest.approx(40)


def test_lines_that_are_still_to_be_added_count() -> None:
    assert seconds_left(ended(node("a", num_lines=100, seconds=50), done={"a": 50}, share=0.5)) == pytest.approx(150)


@pytest.mark.parametrize(
    ("num_done", "is_last_begun", "share"),
    [(9, True, 1.0), (50, False, 1.0), (50, True, 0.0)],
    ids=["few results", "nodes to come", "nothing added"],
)
def test_an_end_that_nothing_is_known_of_is_unknown(num_done: int, is_last_begun: bool, share: float) -> None:
    one = node("a", num_lines=100, seconds=50)
    assert ended(one, done={"a": num_done}, is_last_begun=is_last_begun, share=share) == UNKNOWN


def test_a_node_of_few_lines_without_results_does_not_hide_the_end() -> None:
    main, further = node("a", num_lines=100, seconds=50), node("b", num_lines=20, seconds=1)
    assert seconds_left(ended(main, further, done={"a": 50, "b": 0})) == pytest.approx(50)
    further.num_lines = 21
    assert ended(main, further, done={"a": 50, "b": 0}) == UNKNOWN


def test_an_end_is_never_in_the_past_and_unknown_while_files_are_written() -> None:
    assert seconds_left(ended(node("a", num_lines=10_000, seconds=40), done={"a": 9999})) >= 1
    assert ended(node("a", num_lines=100, seconds=50), done={"a": 100}) == UNKNOWN
    assert ended(node("a", num_lines=100, seconds=50, is_done=True), done={"a": 100}) == UNKNOWN
    assert ended(node("a", num_lines=0, seconds=50), done={}) == UNKNOWN, "it has nothing to do"


@pytest.mark.parametrize(("seconds", "is_known"), [(29.9, False), (30, True)])
def test_a_pace_is_none_while_it_is_mostly_the_wait_for_the_first_result(seconds: float, *, is_known: bool) -> None:
    end = ended(node("a", num_lines=100, seconds=seconds), done={"a": 50})
    assert (end != UNKNOWN) == is_known
