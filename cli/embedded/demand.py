"""Watches for documents that wait to be prepared: only then a stack needs a prepare worker.

A thread polls the database, so that a query that hangs or fails blocks nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from jobs.chunks.ready_queues import is_any_ready
from jobs.database import KeptSession, connect, sessions
from jobs.errors import ServiceError
from jobs.lines.document_bodies import PREPARE_MODEL

POLL_SECONDS = 1.0


@contextmanager
def noticed(look: Callable[[], bool], *, every: float = POLL_SECONDS) -> Iterator[Callable[[], bool]]:
    """Poll `look` until it returns True or the block ends; the yielded function returns whether it has.

    A ServiceError is retried.
    """
    is_over, is_there = threading.Event(), threading.Event()

    def watch() -> None:
        while not is_there.is_set() and not is_over.wait(every):
            try:
                if look():
                    is_there.set()
            except ServiceError:  # Postgres is away: the supervisor reports it
                continue

    threading.Thread(target=watch, name="demand", daemon=True).start()
    try:
        yield is_there.is_set
    finally:
        is_over.set()


@contextmanager
def documents_wait(database_url: str) -> Iterator[Callable[[], bool]]:
    """Do as `noticed`, for documents in the queue of prepare workers."""
    engine = connect(database_url, connections=1)
    looks = KeptSession(sessions(engine))
    try:
        with noticed(lambda: looks.ask(partial(is_any_ready, model=PREPARE_MODEL))) as is_there:
            yield is_there
    finally:
        engine.dispose()  # the last query may still run: its connection ends with it, or with Postgres
