"""Tests of the queue's benchmark at a small size."""

from __future__ import annotations

import re

import pytest

from jobs.database import connect, sessions
from lab import validation
from lab.simulation.shares import jain_index
from lab.work_queue import claims
from lab.work_queue.command import main
from lab.work_queue.fairness import window_indexes

pytestmark = pytest.mark.long


def test_equal_shares_have_index_one_and_one_tenants_alone_a_half() -> None:
    assert jain_index([3, 3]) == 1
    assert jain_index([7, 0]) == 0.5
    assert jain_index([0, 0]) == 1


def test_the_least_fair_window_is_found() -> None:
    alternating = [[(float(at), 10) for at in range(start, 100, 2)] for start in (0, 1)]
    starved = [alternating[0], [used for used in alternating[1] if not 40 < used[0] < 60]]

    assert min(window_indexes(alternating, begin=0, end=100, window_seconds=20)) > 0.99
    indexes = window_indexes(starved, begin=0, end=100, window_seconds=20)
    assert len(indexes) == 81
    assert min(indexes) < 0.6


def test_claims_take_turns_between_tenants_and_leave_the_queue_as_long_as_it_was(database_url: str) -> None:
    engine = connect(database_url)
    maker = sessions(engine)
    tenant_ids = [claims.make_tenant(maker) for _ in range(2)]
    claims.fill(maker, tenant_ids, num_lines=1000)
    for _ in range(2):
        assert len(claims.claim_and_release(maker, 5)) == 5

    with engine.connect() as connection:
        (states,) = connection.exec_driver_sql("SELECT array_agg(DISTINCT state) FROM chunk").one()
        counts = connection.exec_driver_sql(
            "SELECT count(*), count(*) FILTER (WHERE fence > 0), count(DISTINCT tenant_id) FILTER (WHERE fence > 0)"
            " FROM chunk"
        ).one()
    engine.dispose()
    assert states == ["ready"]
    assert counts[0] == 10
    assert counts[2] == 2


def test_a_validation_says_what_a_line_costs(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    validation.measure(database_url, 200)

    assert re.match(r"validation: 200 lines → in_progress, 2 chunks: .* a CPU second", capsys.readouterr().out)


def test_results_go_through_a_stack_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sections", "results", "--lines", "300"]) == 0

    printed = capsys.readouterr().out
    for shown in (
        r"results: 300 lines in .* committed a second",
        r"  processor ms a line: .*engine .*postgres .*worker ",
        r"  a line: [\d,]+ bytes of WAL, .* lines a flush",
        r"  GET /batches/\{id\} meanwhile, ",
    ):
        assert re.search(shown, printed), shown
