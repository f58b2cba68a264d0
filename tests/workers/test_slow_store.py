"""A store that hangs or refuses: what waits for it waits alone, and no line is lost by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import lifecycle
from jobs.chunks import fleet, leasing
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.s3_server import Mood, S3Server
from workers.dispatcher import Dispatcher

TICKS = {"dispatch_seconds": 0.02, "lease_seconds": 0.3}  # the servers of tests are older than such a lease


@pytest.fixture
def storage(s3: S3Server) -> Storage:
    return Storage(s3.url, timeout_seconds=60, max_retries=0)


class Hints:
    """Notes what is hinted."""

    def __init__(self) -> None:
        self.sent: list[str | int] = []
        self._changed = threading.Condition()

    def _note(self, hinted: str | int) -> bool:
        with self._changed:
            self.sent.append(hinted)
            self._changed.notify_all()
        return True

    def validate(self, batch_id: str) -> bool:
        return self._note(batch_id)

    def finalise(self, batch_id: str) -> bool:
        return self._note(batch_id)

    def run_chunk(self, chunk_id: int, *, model: str) -> bool:
        return self._note(chunk_id)

    def wait_for(self, hinted: str | int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: hinted in self.sent, timeout=60), f"{hinted} is not in {self.sent}"


@contextmanager
def dispatching(maker: sessionmaker[Session], storage: Storage, settings: Settings, s3: S3Server) -> Iterator[Hints]:
    hints, stop = Hints(), threading.Event()
    settings = settings.model_copy(update=TICKS)
    thread = threading.Thread(target=Dispatcher(maker, storage, hints=hints, settings=settings).run, args=(stop,))
    thread.start()
    try:
        yield hints
    finally:
        stop.set()
        s3.recover()
        thread.join(60)
        assert not thread.is_alive()


def lose_suspect(maker: sessionmaker[Session], settings: Settings) -> int:
    """Claim the next chunk for the second time after a loss, and let that lease end; return the chunk's id."""
    with maker.begin() as session:
        claim = leasing.claim_next(session, model="demo", worker_id="gone", lease=settings.lease)
        assert claim is not None
        leasing.start(session, claim)
        session.execute(
            text("UPDATE chunk SET losses = 1, lease_until = clock_timestamp() WHERE id = :id"), {"id": claim.chunk_id}
        )
    return claim.chunk_id


def states(maker: sessionmaker[Session]) -> list[str]:
    with maker() as session:
        return list(session.scalars(text("SELECT state FROM chunk ORDER BY id")))


@pytest.mark.parametrize("mood", [Mood.HANG, Mood.REFUSE])
def test_the_dispatcher_goes_on_while_the_input_of_a_suspect_cannot_be_read(
    mood: Mood,
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    s3: S3Server,
    tenant: Tenant,
    submit: Callable[..., str],
    submit_valid: Callable[..., str],
    line: Callable[..., dict[str, Any]],
) -> None:
    batch_id = submit_valid([line(number) for number in range(4)])
    suspect = lose_suspect(maker, settings)
    other = submit([line(0)])
    with maker.begin() as session:
        fleet.register(session, worker_id="w", model="demo", max_chunks=2, max_model_len=512)
    s3.trouble(mood, methods="GET HEAD")
    with dispatching(maker, storage, settings, s3) as hints:
        s3.wait_for_request("GET", num_requests=2)  # validation's and the suspect's
        hints.wait_for(other)
        with maker.begin() as session:
            session.execute(text("SET LOCAL lock_timeout = '5s'"))
            assert session.scalars(text("SELECT id FROM chunk WHERE state = 'leased' FOR UPDATE")).all() == [suspect]
            lifecycle.cancel_batch(session, tenant.id, batch_id)
        hints.wait_for(batch_id)
    assert states(maker) == ["withdrawn"]
