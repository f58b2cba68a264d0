"""Tests of live pages of results: they skip nothing, in any order of flushes, and report what is no longer kept."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import results
from jobs.batches.results import MAX_PAGE_BYTES, ResultsPage, read_finished_lines
from jobs.chunks import leasing
from jobs.errors import GoneError
from jobs.retention import purging
from jobs.settings import MIB
from jobs.storage import Storage
from jobs.tables import Batch
from tests.jobs.batches import control
from tests.jobs.batches.answered_lines import LEASE, answer, claim_all, flush, run_to_end

Run = Callable[..., Batch]


def page_ids(page: ResultsPage) -> list[str]:
    return [json.loads(line)["custom_id"] for line in page.content.splitlines()]


def test_a_line_that_finishes_late_is_on_a_later_page(session: Session, run: Run) -> None:
    batch = run(8)
    first, second = claim_all(session)
    flush(session, second, [answer(batch.id, 6)])
    page = read_finished_lines(session, batch)
    assert (page_ids(page), page.after, page.has_more) == (["a6"], 1, False)
    flush(session, first, [answer(batch.id, 0)])
    page = read_finished_lines(session, batch, after=page.after)
    assert (page_ids(page), page.after) == (["a0"], 2)
    assert read_finished_lines(session, batch, after=2) == ResultsPage(content=b"", after=2, has_more=False)


def test_pages_of_any_size_give_every_line_once(session: Session, run: Run) -> None:
    batch = run(10)
    run_to_end(session, batch, failing=frozenset({4}))
    found: list[str] = []
    after, has_more = 0, True
    while has_more:
        page = read_finished_lines(session, batch, after=after, limit=3)
        found, after, has_more = [*found, *page_ids(page)], page.after, page.has_more
    assert sorted(found) == sorted(f"a{index}" for index in range(10))
    assert after == 10


def test_a_page_ends_after_the_line_that_passes_its_size(session: Session, run: Run) -> None:
    batch = run(4)
    (claim,) = claim_all(session)
    flush(session, claim, [answer(batch.id, line_no, padding="x" * (MAX_PAGE_BYTES * 2 // 3)) for line_no in range(4)])
    page = read_finished_lines(session, batch)
    assert (page_ids(page), page.after, page.has_more) == (["a0", "a1"], 2, True)
    assert page_ids(read_finished_lines(session, batch, after=2)) == ["a2", "a3"]


def test_a_page_takes_no_memory_for_lines_that_are_not_on_it(
    session: Session, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = run(4)
    (claim,) = claim_all(session)
    flush(session, claim, [answer(batch.id, line_no, padding="x" * 4 * MIB) for line_no in range(4)])
    monkeypatch.setattr(results, "MAX_PAGE_BYTES", 1)
    session.expire_all()
    tracemalloc.start()
    try:
        page = read_finished_lines(session, batch)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page_ids(page) == ["a0"]
    assert peak_bytes < 14 * MIB, "the line a few times, and not the others"


def test_a_reader_misses_nothing_while_flushes_commit_in_any_order(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    """The first flush is open while the second arrives: the second waits, so its number cannot be seen first."""
    batch = run(8)
    first, second = claim_all(session)
    slow = maker()
    leasing.flush(slow, first, [answer(batch.id, 0)], flush_no=0, lease=LEASE)

    def flush_second() -> None:
        with maker.begin() as own:
            leasing.flush(own, second, [answer(batch.id, 4)], flush_no=0, lease=LEASE)

    thread = threading.Thread(target=flush_second)
    thread.start()
    thread.join(timeout=0.2)
    assert read_finished_lines(session, batch).after == 0
    slow.commit()
    slow.close()
    thread.join()
    session.commit()
    assert page_ids(read_finished_lines(session, batch)) == ["a0", "a4"]


def test_results_whose_retention_has_ended_are_gone_and_not_empty(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run
) -> None:
    batch = run(4)
    run_to_end(session, batch, failing=frozenset({1}))
    control.finalise(session, storage, batch.id)
    session.commit()
    session.refresh(batch)
    empty = run(["no line"])
    session.commit()
    purging.drop_days(maker, retention=timedelta(days=-1))
    for after in (0, 3):
        with pytest.raises(GoneError, match=f"{batch.output_file_id}.*{batch.error_file_id}") as caught:
            read_finished_lines(session, batch, after=after)
        assert caught.value.code == "results_expired"
    assert read_finished_lines(session, batch, after=4).content == b"", "its reader has everything"
    assert read_finished_lines(session, empty).content == b""
