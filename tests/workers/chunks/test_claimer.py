"""Tests of when a claimer polls for work, and of a database that lost its last commits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import claiming
from jobs.chunks.leasing import ClaimedChunk
from jobs.settings import Settings
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from workers.chunks.claimer import Claimer
from workers.drain import Drain


def test_a_chunk_that_is_given_out_again_under_the_same_fence_runs_once_here(
    maker: sessionmaker[Session],
    settings: Settings,
    submit_valid: Callable[..., str],
    line: Callable[[int], dict[str, Any]],
) -> None:
    claimed, may_end, drain = list[ClaimedChunk](), threading.Event(), Drain()

    def run(claim: ClaimedChunk) -> bool:
        claimed.append(claim)
        return may_end.wait(60)

    claimer = make_claimer(maker, settings, drain, run, claim_alone_seconds=0.05, worker_chunks=2)
    submit_valid([line(0)])
    claimer.start()
    until_leased(maker)
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET state = 'ready', fence = 0, worker_id = NULL, lease_until = NULL"))
    until_leased(maker)
    drain.begin(60)
    may_end.set()
    claimer.join()
    assert [claim.fence for claim in claimed] == [1]


def test_a_hint_that_found_no_slot_is_followed_when_one_is_free_though_its_chunk_was_not_finished(
    maker: sessionmaker[Session],
    settings: Settings,
    submit_valid: Callable[..., str],
    line: Callable[[int], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.chunks.claimer.LOOK_ABOVE_SECONDS", 3600)  # it polled just before the slot became free
    looks = note_looks(monkeypatch)
    claimed, may_end, drain = queue.SimpleQueue[ClaimedChunk](), threading.Event(), Drain()

    def run(claim: ClaimedChunk) -> bool:
        claimed.put(claim)
        may_end.wait(60)
        return False  # as after a cancel

    submit_valid([line(0)])
    claimer = make_claimer(maker, settings, drain, run, claim_alone_seconds=3600, worker_chunks=1)
    claimer.start()
    assert [looks.get(timeout=60), looks.get(timeout=60)] == [True, False]
    first = claimed.get(timeout=60)
    second = submit_valid([line(1)])
    hint = threading.Thread(target=claimer.follow_hint, args=(first.chunk_id + 1,), daemon=True)
    hint.start()
    assert not looks.get(timeout=60), "there is a slot for it"
    may_end.set()
    assert claimed.get(timeout=60).batch_id == second
    hint.join(60)
    drain.begin(60)
    claimer.join()


def note_looks(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue[bool]:
    """Record for every poll whether it found work."""
    found, claim_next = queue.SimpleQueue[bool](), claiming.claim_next

    def noted(*arguments: Any, **named: Any) -> ClaimedChunk | None:
        claim = claim_next(*arguments, **named)
        found.put(claim is not None)
        return claim

    monkeypatch.setattr(claiming, "claim_next", noted)
    return found


def make_claimer(
    maker: sessionmaker[Session],
    settings: Settings,
    drain: Drain,
    run: Callable[[ClaimedChunk], bool],
    **changed: float,
) -> Claimer:
    return Claimer(
        worker_id="w",
        model="demo",
        run=run,
        sessions=maker,
        settings=settings.model_copy(update=changed),
        drain=drain,
        meters=Meters(WORKER),
    )


def until_leased(maker: sessionmaker[Session]) -> None:
    for _ in range(600):
        with maker() as session:
            if session.scalar(text("SELECT state FROM chunk")) == "leased":
                return
        threading.Event().wait(0.05)
    raise AssertionError("nobody claims the chunk")
