"""Tests of a chunk's input in a store that is slow, down or has lost it: no lease is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import text

from jobs.chunks import deferring
from jobs.errors import ServiceError
from jobs.storage import Storage, store_marker
from jobs.tables import Batch
from lab.s3_server import Mood, S3Server
from tests.workers.chunks.builders import CHUNKS, RESULTS, Bench, FakeHost, MakeLine, SubmitLines


class Gate(Storage):
    """Reads wait until `may_go_on` is set."""

    def __init__(self, behind: Storage) -> None:
        self._behind = behind
        self.began = threading.Event()
        self.may_go_on = threading.Event()

    def read_range(self, key: str, start: int, end: int) -> bytes:
        self.began.set()
        assert self.may_go_on.wait(60)
        return self._behind.read_range(key, start, end)


def test_an_object_store_that_is_away_is_no_loss(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine
) -> None:
    class Away(Storage):
        def read_range(self, key: str, start: int, end: int) -> bytes:
            raise ServiceError("the store is away")

    submit_valid([line(0)])
    claim = bench.claim()
    bench.change_parts(storage=Away("memory://"))
    bench.start(claim)
    bench.join()
    assert bench.rows("SELECT state, losses FROM chunk") == [("deferred", 0)]
    assert bench.rows("SELECT state, deferred_until > now() FROM batch") == [("in_progress", True)]


def look_again(bench: Bench) -> None:
    """Advance time to the end of the batch's pause, and to the second check of a missing input."""
    with bench.maker.begin() as session:
        session.execute(
            text("UPDATE batch SET deferred_until = now(), input_missed_at = input_missed_at - interval '2 minutes'")
        )
        assert deferring.resume(session)


def test_the_lease_is_held_while_the_store_is_slow(
    bench: Bench, host: FakeHost, storage: Storage, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    host.instant = True
    gate = Gate(storage)
    bench.change_parts(storage=gate)
    bench.start(bench.claim())
    assert gate.began.wait(20)
    bench.age_lease()
    bench.wait_until("SELECT lease_until > now() + interval '10 seconds' FROM chunk", [(True,)])
    gate.may_go_on.set()
    bench.join()
    assert bench.rows(CHUNKS) == [("done", 1)]


@pytest.mark.parametrize("mood", [Mood.HANG, Mood.REFUSE])
def test_a_store_that_hangs_or_refuses_gives_the_chunk_back(
    bench: Bench, host: FakeHost, s3: S3Server, storage: Storage, submit_valid: SubmitLines, line: MakeLine, mood: Mood
) -> None:
    submit_valid([line(0)])
    host.instant = True
    key = bench.rows("SELECT object_key FROM file")[0][0]
    away = Storage(s3.url, timeout_seconds=2)  # a busy machine answers within that
    away.put(key, storage.read_range(key, 0, 10_000))
    bench.change_parts(storage=away)
    s3.trouble(mood)
    for fence in (1, 2):
        bench.start(bench.claim())
        bench.join()
        assert bench.rows("SELECT state, fence, losses FROM chunk") == [("deferred", fence, 0)]
        look_again(bench)
    s3.recover()
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200)]


def test_a_chunk_is_marked_as_started_once_its_lines_go_to_the_engine(
    bench: Bench, host: FakeHost, storage: Storage, submit_valid: SubmitLines, line: MakeLine
) -> None:
    submit_valid([line(0)])
    gate = Gate(storage)
    bench.change_parts(storage=gate)
    bench.start(bench.claim())
    assert gate.began.wait(20)
    assert bench.rows("SELECT started_fence FROM chunk") == [(None,)]
    gate.may_go_on.set()
    host.wait_for(1)
    assert bench.rows("SELECT started_fence FROM chunk") == [(1,)]
    host.answer(1)
    bench.join()


@pytest.mark.parametrize("mood", [Mood.NO_BUCKET, Mood.NO_ROUTE, Mood.OTHER_SITE, Mood.FORBID])
def test_no_line_is_lost_while_another_site_answers_for_the_store(
    bench: Bench, host: FakeHost, s3: S3Server, storage: Storage, submit_valid: SubmitLines, line: MakeLine, mood: Mood
) -> None:
    submit_valid([line(0)])
    host.instant = True
    away = Storage(s3.url, timeout_seconds=5, is_marked=True)
    with bench.maker.begin() as session:
        session.execute(text("INSERT INTO store_marker (marker) VALUES ('database_1')"))
    Storage(s3.url).access.write_marker("database_1")
    store_marker.bind(bench.maker, away)
    key = bench.rows("SELECT object_key FROM file")[0][0]
    away.put(key, storage.read_range(key, 0, 10_000))
    bench.change_parts(storage=away)
    s3.trouble(mood)
    for _ in range(2):
        bench.start(bench.claim())
        bench.join()
        assert bench.rows("SELECT state, losses FROM chunk") == [("deferred", 0)]
        assert bench.rows("SELECT state, input_missed_at FROM batch") == [("in_progress", None)]
        look_again(bench)
    s3.recover()
    bench.start(bench.claim())
    bench.join()
    assert bench.rows(RESULTS) == [(0, 200)]


def test_a_chunk_whose_input_is_missed_twice_fails_its_batch_before_its_lease_ends(
    bench: Bench,
    storage: Storage,
    submit_valid: SubmitLines,
    line: MakeLine,
    read_batch: Callable[[str], Batch],
) -> None:
    batch_id = submit_valid([line(0)])
    storage.delete(bench.rows("SELECT object_key FROM file")[0][0])
    bench.start(bench.claim())
    bench.join()
    assert bench.rows("SELECT state, losses FROM chunk") == [("deferred", 0)]
    look_again(bench)
    bench.start(bench.claim())
    bench.join()
    batch = read_batch(batch_id)
    assert (batch.state, batch.outcome) == ("finalizing", "failed")
    assert [error["code"] for error in batch.errors or []] == ["file_not_found"]
    assert bench.rows("SELECT state, losses FROM chunk") == [("withdrawn", 0)]
