"""Tests of the dashboard's benchmark at a small size, and of the pages' queries on its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from cli.embedded.launcher import BenchLauncher
from jobs.database import connect
from lab.dashboard.command import parse, run
from lab.dashboard.rows import Sizes, fill

pytestmark = pytest.mark.long


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = connect(database_url)
    yield engine
    engine.dispose()


def test_rows_are_of_all_states_and_agree_with_one_another(engine: Engine) -> None:
    fill(engine, Sizes(batches=400, workers=10, tenants=3, lines=20, largest=100, hours=2))
    with engine.connect() as connection:
        states = set(connection.scalars(text("SELECT DISTINCT state FROM batch")))
        found = connection.execute(text(_AGREE)).one()
    assert states == {
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled",
    }  # fmt: skip
    assert found.num_results == found.num_counted == found.num_billed > 400
    assert found.num_errors == found.num_failed > 0
    assert found.num_owners == 3


def test_every_page_and_stream_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--batches", "100", "--workers", "4", "--tenants", "2", "--lines", "4", "--largest", "40")
    few = ("--loads", "1", "--looks", "1", "--open", "4", "--seconds", "1")
    assert run(parse([*small, *few]), BenchLauncher) == 0
    printed = capsys.readouterr().out
    for shown in (
        r"\| operator / \| [1-9]\d? \| ",
        r"\| tenant /reviews/\S+ \| ",
        r"\| tenant /live/extractions/\S+ \| ",
        r"no page open: [\d.]+% of a core",
        r"4 open pages, of many viewers \(\d different\): -?[\d.]+% of a core more",
    ):
        assert re.search(shown, printed), shown


_AGREE = """
    SELECT (SELECT count(*) FROM result) AS num_results,
        (SELECT sum(num_completed + num_failed) FROM batch) AS num_counted,
        (SELECT sum(num_results) FROM ledger) AS num_billed,
        (SELECT count(*) FROM result WHERE is_error) AS num_errors,
        (SELECT sum(num_failed) FROM batch) AS num_failed,
        (SELECT count(DISTINCT tenant_id) FROM batch WHERE state = 'in_progress') AS num_owners
"""
