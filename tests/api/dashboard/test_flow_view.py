"""Tests of the graph of a flow: what each node shows, what is to come, and why the flow waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.dashboard.flow_view import FlowView, NodeKind, ahead, flow_view
from api.dashboard.flow_waits import Wait, open_batches, wait_of
from flows.ends import FlowEnd
from flows.parts import FlowParts
from flows.tables import Flow, FlowNode
from jobs.forecasts.outlooks import Outlook
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.lines.passage_bodies import FIND_ENDPOINT
from jobs.tables import Batch

NOW = datetime.now(UTC)
"""When the tests were collected: compared with the clock only where minutes do not matter."""
BEGAN = NOW - timedelta(minutes=30)
AHEAD = (ahead("ground"), ahead("ask again", is_certain=False))


def flow(**values: Any) -> Flow:
    return Flow(**{"id": "flow_1", "recipe": "extraction", "state": "in_progress", **values})


def batch(batch_id: str, **values: Any) -> Batch:
    numbers = {"num_requests": 0, "num_completed": 0, "num_failed": 0, "input_tokens": 0, "output_tokens": 0}
    usual = {"state": "in_progress", "cost_picos": 0, "expires_at": NOW + timedelta(hours=1)}
    return Batch(id=batch_id, **{**numbers, **usual, **values})


def node(name: str, number: int, **values: Any) -> FlowNode:
    return FlowNode(flow_id="flow_1", name=name, number=number, **{"begun_at": BEGAN, "num_lines": 0, **values})


READ = batch("batch_read", state="completed", num_requests=1280, num_completed=1277, num_failed=3)
ASK = batch(
    "batch_ask",
    num_requests=1277,
    num_completed=700,
    num_failed=34,
    input_tokens=3_000_000,
    output_tokens=120_000,
    cost_picos=412_300_000_000,
)
NODES = (
    node("read", 0, batch_id=READ.id, done_at=BEGAN + timedelta(minutes=10)),
    node("ask_twice", 1, batch_id=ASK.id),
)


def parts_of(
    begun: Sequence[FlowNode] = NODES,
    batches: Sequence[Batch] = (READ, ASK),
    serving: Mapping[str, Sequence[Batch]] | None = None,
) -> FlowParts[FlowNode]:
    return FlowParts(begun=begun, batches={each.id: each for each in batches}, serving=serving or {})


def view(of: Flow, parts: FlowParts[FlowNode] | None = None, **values: Any) -> FlowView:
    return flow_view(of, parts or parts_of(), AHEAD, outlooks={}, end=FlowEnd(), currency="USD", **values)


def test_begun_nodes_show_lines_tokens_cost_and_time_and_others_what_is_to_come() -> None:
    open_node = node("ask_twice", 1, batch_id=ASK.id, begun_at=datetime.now(UTC) - timedelta(minutes=30))
    graph = view(flow(), parts_of([NODES[0], open_node]))
    assert [(node.name, node.kind.value, node.is_open) for node in graph.nodes] == [
        ("read", "begun", False),
        ("ask twice", "begun", True),
        ("ground", "ahead", False),
        ("ask again", "if-needed", False),
    ]
    shown = graph.places
    assert shown["0.state"] == ("completed", "warn"), "its failed lines are beside it"
    assert (shown["0.lines"], shown["0.failed"], shown["0.took"]) == ("1,280 / 1,280", "3", "10 min")
    assert shown["1.state"] == ("in progress", "")
    assert [shown[f"1.{what}"] for what in ("lines", "failed", "tokens", "cost", "took")] == [
        *("734 / 1,277", "34", "3.1M", "0.4123 USD", "30 min"),
    ]
    assert shown["1.done"] == "548"
    assert not any(name.startswith(("2.", "3.")) for name in shown)


def test_the_lines_of_a_batch_that_grows_are_those_so_far() -> None:
    growing = batch("batch_ask", num_requests=1277, num_completed=700, is_growing=True)
    shown = view(flow(), parts_of(batches=[READ, growing])).places
    assert (shown["0.lines"], shown["1.lines"]) == ("1,280 / 1,280", "700 / 1,277 so far")


def test_a_node_without_lines_has_nothing_to_do() -> None:
    empty = view(flow(), parts_of([node("read", 0, batch_id=None, done_at=BEGAN)], []))
    assert empty.places["0.state"] == ("nothing to do", "")
    assert (empty.places["0.lines"], empty.nodes[0].batch_id) == ("–", None)


def test_an_ended_flow_shows_what_it_did_not_reach_but_nothing_that_was_not_needed() -> None:
    ended = BEGAN + timedelta(minutes=20)
    graph = view(flow(state="failed", reason="no", ended_at=ended))
    assert [(node.name, node.state) for node in graph.nodes[2:]] == [("ground", "not reached")]
    assert (graph.nodes[1].is_open, graph.places["1.took"]) == (False, "20 min")


def test_a_flow_that_failed_on_the_results_of_a_batch_has_a_failed_node() -> None:
    answered = batch("batch_1", state="completed", num_requests=2, num_completed=2)
    parts = parts_of([node("ask", 0, batch_id="batch_1")], [answered])
    assert view(flow(), parts).places["0.state"] == ("completed", "good")
    ended = flow(state="failed", reason="no", ended_at=NOW)
    assert view(ended, parts).places["0.state"] == ("failed", "bad")


def test_batches_that_found_passages_are_sources_the_last_one_first() -> None:
    counts = {"num_requests": 40, "num_completed": 39, "num_failed": 1}
    queries = batch("batch_q", endpoint=EMBEDDING_ENDPOINT, state="completed", **counts)
    passages = batch("batch_p", endpoint=FIND_ENDPOINT, deleted_at=NOW)
    graph = view(flow(), parts_of(serving={ASK.id: [queries, passages]}))
    assert [(one.what, one.path, one.progress) for one in graph.nodes[1].sources] == [
        ("passages", None, ""),
        ("queries", "/batches/batch_q", "40 / 40"),
    ]
    assert graph.places["1.1.progress"] == "40 / 40"
    assert not graph.nodes[0].sources


def test_the_page_of_a_deleted_batch_is_not_linked() -> None:
    gone = batch("batch_ask", deleted_at=NOW)
    assert [node.has_page for node in view(flow(), parts_of(batches=[READ, gone])).nodes[:2]] == [True, False]


def test_the_page_is_drawn_anew_for_nodes_and_not_for_numbers() -> None:
    before = view(flow()).layout
    further = batch("batch_ask", num_requests=1277, num_completed=900)
    assert view(flow(), parts_of(batches=[READ, further])).layout == before
    done = [NODES[0], node("ask_twice", 1, batch_id=ASK.id, done_at=NOW)]
    others = [view(flow(), parts_of(done)), view(flow(state="cancelling")), view(flow(reason="no room"))]
    assert len({before, *(graph.layout for graph in others)}) == 4


def wait(of: Flow, parts: FlowParts[FlowNode], outlook: Outlook | None = None, **values: Any) -> Wait:
    outlooks = {} if outlook is None else {ASK.id: outlook}
    return wait_of(of, parts, outlooks, names=["read", "ask", "ground"], **{"expires_at": None, **values})


def test_a_flow_waits_for_its_reason_until_the_next_try() -> None:
    now = datetime.now(UTC)
    limited = wait(flow(reason="1,000 lines are queued", look_at=now + timedelta(minutes=5)), parts_of())
    assert (limited.why, limited.is_problem) == ("1,000 lines are queued", True)
    assert "in 4 min" in limited.until or "in 5 min" in limited.until
    overdue = wait(flow(reason="no", look_at=now - timedelta(minutes=5)), parts_of([], []))
    assert overdue.until == "The next try is due now."


def test_a_flow_waits_for_what_its_open_batch_waits_for() -> None:
    ends_at = datetime.now(UTC) + timedelta(minutes=12)
    outlook = Outlook(waits_for="waiting_budget: 5 tokens", ends_at=ends_at)
    waiting = wait(flow(), parts_of(), outlook, expires_at=datetime(2026, 3, 4, 5, 6, tzinfo=UTC))
    assert (waiting.why, waiting.is_problem) == ("waiting_budget: 5 tokens", False)
    assert "in 11 min" in waiting.until or "in 12 min" in waiting.until
    assert waiting.until.endswith("2026-03-04 05:06 UTC.")
    assert [each.id for each in open_batches(parts_of())] == [ASK.id]


def test_the_time_of_an_open_batch_is_the_flows_where_that_has_none() -> None:
    assert f"{ASK.expires_at:%Y-%m-%d %H:%M}" in wait(flow(), parts_of()).until
    assert wait(flow(), parts_of([], [])).until == ""


@pytest.mark.parametrize(
    ("state", "begun", "task"),
    [
        ("in_progress", [], "prepares read"),
        ("in_progress", [NODES[0]], "prepares ask"),
        ("in_progress", [node("read", 0, batch_id=READ.id)], "records the results of read"),
        ("in_progress", [node(name, n, done_at=NOW) for n, name in enumerate("abc")], "writes the results"),
        ("cancelling", [NODES[0]], "ends it"),
    ],
)
def test_between_batches_a_flow_waits_for_a_control_worker(state: str, begun: list[FlowNode], task: str) -> None:
    assert wait(flow(state=state), parts_of(begun, [READ])).why == f"Waits until a control worker {task}."
    claimed = flow(state=state, claimed_until=datetime.now(UTC) + timedelta(minutes=1))
    assert wait(claimed, parts_of(begun, [READ])).why == f"A control worker {task}."


def test_a_queued_run_waits_for_another_and_an_ended_flow_for_nothing() -> None:
    queued = wait(flow(state="queued"), parts_of([], []))
    assert "pipeline" in queued.why
    assert wait(flow(state="completed", ended_at=NOW), parts_of()) == Wait(why="")
    failed = flow(state="failed", reason="line 17", ended_at=NOW, look_at=NOW)
    assert wait(failed, parts_of()) == Wait(why="line 17", is_problem=True)


def test_a_node_ahead_is_certain_or_only_if_needed() -> None:
    assert [node.kind for node in AHEAD] == [NodeKind.AHEAD, NodeKind.IF_NEEDED]
