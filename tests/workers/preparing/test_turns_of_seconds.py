"""Tests of reading seconds in the fair order: nobody waits for all slow documents of another tenant. No clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from jobs.chunks import claiming, leasing
from jobs.chunks.fair_order import Queue, QueuedChunk, wanted_in_order
from jobs.chunks.recording import LineResult
from jobs.lines.document_bodies import GROUND_ENDPOINT, PREPARE_MODEL, READ_ENDPOINT
from jobs.lines.line_times import TURN_MILLISECONDS, USUAL_MILLISECONDS
from jobs.lines.reading import RawLine
from jobs.states import Priority
from tests.workers.preparing.builders import Library, Preparer, library_of
from workers.chunks.answerer import Ended, Unanswered
from workers.preparing import lines
from workers.preparing.lines import DocumentLine
from workers.preparing.readers import ReaderPool, Readers
from workers.slots import Slots

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READERS = 2
A_MINUTE = 60_000_000


def read_next(library: Library, *, microseconds: int) -> str:
    """Claim the next chunk and answer all its lines with a duration each; return its tenant."""
    settings = library.settings
    with library.sessions.begin() as session:
        claim = claiming.claim_next(session, model=PREPARE_MODEL, worker_id="w", lease=settings.lease)
        assert claim is not None
        results = [
            LineResult(line_no=claim.first_line + n, line=b"{}", status_code=200, reading_microseconds=microseconds)
            for n in range(claim.num_lines)
        ]
        leasing.flush(session, claim, results, flush_no=0, lease=settings.lease, is_last=True)
    return claim.tenant_id


def bodies(num: int) -> list[dict[str, str]]:
    return [{"file_id": f"file_{n}", "name": f"{n}.txt"} for n in range(num)]


@dataclass(slots=True)
class Desk:
    """Tenants in the fair order of one worker of readers, one chunk per claim, charged as the test says."""

    slots: Slots = field(default_factory=lambda: Slots(READERS, are_newcomers_in_turn=False))
    waiting: dict[str, list[int]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    def claim(self) -> str | None:
        queues = [
            Queue(
                tenant_id=tenant_id,
                priority=Priority.NORMAL,
                weight=1.0,
                virtual_time=self.times[tenant_id],
                waiting_since=NOW,
                chunks=[QueuedChunk(id=number, estimated_tokens=1) for number in chunks],
            )
            for tenant_id, chunks in self.waiting.items()
            if chunks
        ]
        found = wanted_in_order(queues, self.slots.wanted, now=NOW, limit=1)
        for tenant_id, chunks in self.waiting.items():
            if found and found[0] in chunks:
                chunks.remove(found[0])
                self.slots.open(Priority.NORMAL, tenant_id)
                return tenant_id
        return None


def test_whoever_has_nothing_open_has_a_slot_though_it_was_served_before() -> None:
    desk = Desk(waiting={"slow": list(range(200)), "other": [500, 501]}, times={"slow": 0.0, "other": 10_000.0})
    assert [desk.claim() for _ in range(5)] == ["slow", "slow", "other", None, None], "one, beside those of the readers"


def test_newcomers_have_turns_among_themselves() -> None:
    waiting = {"slow": [1, 2, 3], "late": [10], "first": [20]}
    desk = Desk(waiting=waiting, times={"slow": 0.0, "late": 9.0, "first": 8.0})
    assert [desk.claim() for _ in range(4)] == ["slow", "slow", "first", None]


def test_who_read_many_small_documents_is_before_a_stranger_whose_one_took_a_minute(library: Library) -> None:
    stranger = library_of(library, "stranger")
    library.submit(READ_ENDPOINT, bodies(64))
    assert {read_next(library, microseconds=5_000) for _ in range(4)} == {library.tenant.id}
    stranger.submit(READ_ENDPOINT, bodies(48))
    assert read_next(library, microseconds=A_MINUTE) == stranger.tenant.id, "nobody else waits"
    library.submit(GROUND_ENDPOINT, [ground_body()])
    assert read_next(library, microseconds=5_000) == library.tenant.id


def ground_body() -> dict[str, object]:
    first = {"batch_id": "batch_1", "first_line": 0, "num_lines": 1}
    return {"object_key": "k", "plan_key": "p", "name": "a", "sha256": "s", "number": 0, "first": first}


def test_a_chunk_is_charged_by_what_its_lines_took(library: Library) -> None:
    library.submit(READ_ENDPOINT, bodies(2))
    read_next(library, microseconds=3_000_000)
    assert library.rows("SELECT virtual_time FROM fair_share") == [(6000.0,)]


def test_what_is_read_in_no_time_is_charged_by_the_line(library: Library) -> None:
    library.submit(READ_ENDPOINT, bodies(3))
    read_next(library, microseconds=0)
    assert library.rows("SELECT virtual_time FROM fair_share") == [(3.0,)]


def test_chunks_are_as_long_as_the_last_documents_of_their_tenant_took(library: Library) -> None:
    stranger = library_of(library, "stranger")
    usual = USUAL_MILLISECONDS[READ_ENDPOINT]
    library.submit(READ_ENDPOINT, bodies(3))
    read_next(library, microseconds=1_000 * TURN_MILLISECONDS // 2)
    slow, new = library.submit(READ_ENDPOINT, bodies(3)), stranger.submit(READ_ENDPOINT, bodies(3))
    of_batch = "SELECT num_lines, estimated_tokens FROM chunk WHERE batch_id = '{}' ORDER BY first_line"
    assert library.rows(of_batch.format(slow)) == [(2, TURN_MILLISECONDS), (1, TURN_MILLISECONDS // 2)]
    assert library.rows(of_batch.format(new)) == [(3, 3 * usual)]


def test_a_turn_that_is_over_gives_its_other_lines_back(
    library: Library, preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "TURN_MICROSECONDS", 1)
    batch_id = library.read({f"{n}.txt": b"text %d" % n for n in range(8)})
    assert preparer.run_next(), "the next claim need not wait"
    ((num_read, num_failed),) = library.rows("SELECT num_completed, num_failed FROM batch")
    assert 1 <= num_read < 8
    assert num_failed == 0
    ((state, losses, estimate),) = library.rows("SELECT state, losses, estimated_tokens FROM chunk")
    assert (state, losses) == ("ready", 0)
    assert estimate < 8 * USUAL_MILLISECONDS[READ_ENDPOINT]
    while library.rows("SELECT FROM chunk WHERE state = 'ready'"):
        assert preparer.run_next()
    assert len(library.bodies(batch_id)) == 8
    assert library.rows("SELECT sum(num_results), count(*) FILTER (WHERE reading_microseconds <= 0) FROM ledger") == [
        (8, 0)
    ]


def test_a_turn_of_a_batch_that_is_cancelled_is_withdrawn(library: Library) -> None:
    library.submit(READ_ENDPOINT, bodies(4))
    with library.sessions.begin() as session:
        claim = claiming.claim_next(session, model=PREPARE_MODEL, worker_id="w", lease=library.settings.lease)
        assert claim is not None
        session.execute(text("UPDATE batch SET state = 'cancelling'"))
        leasing.end_turn(session, claim, estimated_tokens=7)
    assert library.rows("SELECT state FROM chunk") == [("withdrawn",)]


def test_lines_that_no_reader_has_begun_are_held_back_too(
    library: Library, preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first of them ends the turn, one waits for the readers, which work elsewhere, and two for it."""
    library.submit(READ_ENDPOINT, bodies(4))
    pool = ReaderPool(2)
    of_chunk = replace(preparer, parts=replace(preparer.parts, pool=pool)).lines(preparer.claim())
    slow = LineResult(line_no=0, line=b"{}", status_code=200, reading_microseconds=lines.TURN_MICROSECONDS)
    monkeypatch.setattr(of_chunk, "_answer", lambda *_: slow)
    ended: list[Ended[DocumentLine]] = []
    raws = [RawLine(line_no=number, byte_start=0, byte_end=1, content=b"x") for number in range(4)]
    of_chunk.submit([(DocumentLine(raw), None) for raw in raws], ended.append)
    made = []
    for _ in range(2):
        taken = pool._turns.take(is_spare=False, timeout_seconds=0)
        assert taken is not None
        taken[1](Readers())
        while ended:
            made.append(ended.pop(0).make())
    assert made == [slow, *[Unanswered.LEFT] * 3]
