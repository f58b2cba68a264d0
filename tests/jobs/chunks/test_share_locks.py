"""Tests of a tenant's shares in two classes: releasing a chunk and waking others do not wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import leasing, waiting
from jobs.tables import Tenant
from tests.jobs.chunks.builders import Run
from tests.jobs.chunks.covers import claim_next, limit

_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
NORMAL, URGENT = "normal", "urgent"


@contextmanager
def after_first_write_of_a_share(engine: Engine, then: Callable[[], None]) -> Iterator[None]:
    """Call `then` in this thread once it has locked a share, before its next statement."""
    mine, called = threading.get_ident(), threading.Event()

    def look(_: object, __: object, statement: str, *___: object) -> None:
        is_lock = "UPDATE fair_share" in statement or ("fair_share" in statement and "FOR NO KEY UPDATE" in statement)
        if threading.get_ident() == mine and is_lock and not called.is_set():
            called.set()
            then()

    event.listen(engine, "after_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", look)
    assert called.is_set(), "no share was locked"


def until_done_or_waiting(engine: Engine, future: Future[Any]) -> None:
    """Return when a thread is done, or waits for a lock."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not future.done() and not connection.scalar(text(_WAITS)):
            pass


def test_a_lowered_chunk_that_is_given_back_while_others_are_woken_ends_neither(
    engine: Engine, maker: sessionmaker[Session], session: Session, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 1000)
    lowered, first, last = (run(4, priority=priority) for priority in (URGENT, URGENT, NORMAL))
    claims = {claim.batch_id: claim for claim in (claim_next(session) for _ in range(3))}
    session.execute(text("UPDATE chunk SET charged_priority = 'normal' WHERE batch_id = :id"), {"id": lowered.id})
    later = text("UPDATE batch SET expires_at = expires_at + interval '1 hour' WHERE id = :id")
    session.execute(later, {"id": last.id})  # so that a sweep reaches the urgent share first
    for batch in (first, last):
        waiting.lay_aside(session, claims[batch.id], tokens=5)
    session.commit()
    with ThreadPoolExecutor(1) as threads:
        others: list[Future[int]] = []

        def wake() -> int:
            with maker.begin() as own:
                return waiting.wake(own)

        def wake_meanwhile() -> None:
            others.append(threads.submit(wake))
            until_done_or_waiting(engine, others[0])

        with after_first_write_of_a_share(engine, wake_meanwhile), maker.begin() as own:
            leasing.release(own, replace(claims[lowered.id], priority=NORMAL))
        assert others[0].result(timeout=30) == 0, "their shares were locked"
    with maker.begin() as own:
        assert waiting.wake(own) == 2, "a later sweep wakes them"
