"""Tests of a store that hangs or refuses: only work that needs it waits, and no line is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit.audit import audit
from jobs.batches import lifecycle
from jobs.chunks import claiming, fleet, leasing
from jobs.errors import ServiceError
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import ObjectWriter, Storage
from jobs.tables import Batch, Tenant
from lab.s3_server import Mood, S3Server
from workers.control import Control
from workers.dispatcher import Dispatcher

TICKS = {"dispatch_seconds": 0.02, "lease_seconds": 0.3}  # the servers of tests are older than such a lease


@pytest.fixture
def storage(s3: S3Server) -> Storage:
    return Storage(s3.url, timeout_seconds=60, max_retries=0)


class Hints:
    """Records hints."""

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
        claim = claiming.claim_next(session, model="demo", worker_id="gone", lease=settings.lease)
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


IN_TRANSACTION = text("""
    SELECT query FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
""")


class WatchedStorage(Storage):
    """Records the open transactions at each request to the store."""

    def __init__(self, inner: Storage, maker: sessionmaker[Session]) -> None:
        self._inner = inner
        self._maker = maker
        self.seen: list[str] = []
        self.num_requests = 0

    def _look(self) -> None:
        self.num_requests += 1
        with self._maker() as session:
            self.seen += session.scalars(IN_TRANSACTION)

    def size(self, key: str) -> int:
        self._look()
        return self._inner.size(key)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        self._look()
        return self._inner.read_range(key, start, end)

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        self._look()
        with self._inner.writer(key) as inner:
            yield WatchedWriter(inner, self._look)
            self._look()  # the object is about to be completed


class WatchedWriter(ObjectWriter):
    def __init__(self, inner: ObjectWriter, look: Callable[[], None]) -> None:
        self._inner = inner
        self._look = look

    @property
    def size_bytes(self) -> int:  # type: ignore[override] # the other one's
        return self._inner.size_bytes

    def write(self, part: bytes) -> None:
        self._look()
        self._inner.write(part)


def test_no_transaction_is_open_while_the_store_is_asked_for_a_batch(
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    tenant: Tenant,
    submit: Callable[..., str],
    read_batch: Callable[[str], Batch],
    line: Callable[..., dict[str, Any]],
) -> None:
    batch_id = submit([line(number) for number in range(4)])
    watched = WatchedStorage(storage, maker)
    control = Control(maker, watched, settings.model_copy(update={"heartbeat_seconds": 1000.0}))
    control.validate(batch_id)
    assert (watched.num_requests, watched.seen) == (1, []), "its content"
    with maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    control.finalise(batch_id)
    assert read_batch(batch_id).num_failed == 4
    assert (watched.num_requests, watched.seen) == (10, []), "that and its size, and two objects: failures, their index"


def test_a_batch_whose_store_hangs_is_free_for_others_and_ends_when_it_answers(
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    s3: S3Server,
    tenant: Tenant,
    submit: Callable[..., str],
    read_batch: Callable[[str], Batch],
    line: Callable[..., dict[str, Any]],
) -> None:
    batch_id = submit([line(0), line(1)])
    control = Control(maker, storage, settings.model_copy(update={"heartbeat_seconds": 1000.0}))

    @contextmanager
    def hanging(work: Callable[[str], BatchState | None], methods: str) -> Iterator[Session]:
        """Yield a session for concurrent work, which must succeed at once."""
        s3.trouble(Mood.HANG, methods=methods)
        with ThreadPoolExecutor(1) as executor:
            working = executor.submit(work, batch_id)
            try:
                s3.wait_for_hanging()
                with maker.begin() as session:
                    assert session.scalars(IN_TRANSACTION).all() == []
                    session.execute(text("SET LOCAL lock_timeout = '1s'"))
                    yield session
            finally:
                s3.recover()
            with pytest.raises(ServiceError):
                working.result()

    with hanging(control.validate, "GET") as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    for methods in ("GET", "PUT"):
        with hanging(control.finalise, methods) as session:
            assert session.scalars(text("SELECT id FROM batch FOR UPDATE")).all() == [batch_id]
    assert control.finalise(batch_id) == "cancelled"
    batch = read_batch(batch_id)
    assert (batch.num_requests, batch.num_failed) == (2, 2)
    with maker() as session:
        assert audit(session, storage=storage) == []
