"""What one GPU worker does: keeps up to K chunks open on one engine, beats its heart, drains at the end.

Chunks come by hint, or, when none comes, by the worker's own claim.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor

from sqlalchemy.orm import Session, sessionmaker

from engine.process.messages import Ready
from jobs.chunks import fleet, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.settings import Settings
from workers.chunks.parts import WorkerParts
from workers.chunks.run import ChunkRun
from workers.drain import Drain
from workers.engine_host import EngineHost
from workers.engine_metrics import engine_metrics

log = logging.getLogger(__name__)


class ChunkService:
    """Owns the open chunks of this process. `start` and `close` are called once, by the pool."""

    def __init__(
        self,
        *,
        worker_id: str,
        model: str,
        host: EngineHost,
        make_parts: Callable[[Ready, Drain], WorkerParts],
        sessions: sessionmaker[Session],
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_parts` is called once the engine is ready, with what it said of itself."""
        self._worker_id = worker_id
        self._model = model
        self._host = host
        self._make_parts = make_parts
        self._sessions = sessions
        self._settings = settings
        self._monotonic = monotonic
        self._parts: WorkerParts | None = None
        self._drain = Drain(monotonic)
        self._stop = threading.Event()
        self._slots = threading.Semaphore(settings.worker_chunks)
        self._last_hint = monotonic()
        self._threads: list[threading.Thread] = []

    def start(self, executor: Executor) -> None:
        """Start the engine, announce the worker, and begin to look for work. Raises EngineStartError."""
        ready = self._host.start()
        self._parts = self._make_parts(ready, self._drain)
        with transaction(self._sessions) as session:
            fleet.register(
                session,
                worker_id=self._worker_id,
                model=self._model,
                max_chunks=self._settings.worker_chunks,
                max_model_len=ready.max_model_len,
            )
        for name, target in (("heartbeat", self._beat), ("claim-alone", lambda: self._claim_alone(executor))):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        log.info("worker ready worker_id=%s model=%s device=%s", self._worker_id, self._model, ready.device)

    def run_hinted(self, chunk_id: int) -> None:
        """Claim and run the chunk that a hint names; a repeated hint finds nothing to claim.

        A hint that meets no free slot is dropped. To wait for one would hold the thread that a chunk we claimed by
        ourselves is about to need: its lease would run out, and with one slot both would wait for ever.
        """
        self._last_hint = self._monotonic()
        if self._drain.is_on or not self._slots.acquire(blocking=False):
            return
        try:
            with transaction(self._sessions) as session:
                claim = leasing.claim_chunk(session, chunk_id, worker_id=self._worker_id, lease=self._settings.lease)
            if claim is not None:
                self._run(claim)
        finally:
            self._slots.release()

    def begin_drain(self) -> None:
        """Take no more chunks; open ones get `drain_seconds` to finish, then give their rest back."""
        if not self._drain.is_on:
            log.info("drain started worker_id=%s", self._worker_id)
            self._drain.begin(self._settings.drain_seconds)

    def drain(self) -> None:
        """Begin to drain and wait until no chunk is open."""
        self.begin_drain()
        for _ in range(self._settings.worker_chunks):
            self._slots.acquire()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Say goodbye in the fleet and stop the engine."""
        try:
            with transaction(self._sessions) as session:
                fleet.stop(session, self._worker_id)
        except ServiceError as error:
            log.warning("could not sign off worker_id=%s error=%s", self._worker_id, error)
        self._host.close()
        log.info("worker stopped worker_id=%s", self._worker_id)

    def _run(self, claim: ClaimedChunk) -> None:
        assert self._parts is not None, "start() first"
        ChunkRun(claim, self._parts).run()

    def _claim_alone(self, executor: Executor) -> None:
        """Help ourselves while slots are free and hints are absent: a dead broker slows work and stops nothing."""
        while not self._stop.wait(self._settings.claim_alone_seconds / 4):
            silent_for = self._monotonic() - self._last_hint
            if silent_for < self._settings.claim_alone_seconds or self._drain.is_on:
                continue
            while not self._drain.is_on and self._slots.acquire(blocking=False):
                if not self._claim_one(executor):
                    self._slots.release()
                    break

    def _claim_one(self, executor: Executor) -> bool:
        """Claim the next chunk into the slot already taken; return whether there was one."""
        try:
            with transaction(self._sessions) as session:
                claim = leasing.claim_next(
                    session, model=self._model, worker_id=self._worker_id, lease=self._settings.lease
                )
        except ServiceError as error:
            log.warning("claiming failed error=%s", error)
            return False
        except Exception:
            log.exception("claiming failed")  # the thread must live on: with the broker away it is all that claims
            return False
        if claim is None:
            return False
        executor.submit(self._run_in_slot, claim)
        return True

    def _run_in_slot(self, claim: ClaimedChunk) -> None:
        try:
            self._run(claim)
        except Exception:
            log.exception("chunk failed chunk_id=%s", claim.chunk_id)
        finally:
            self._slots.release()

    def _beat(self) -> None:
        """Write the heartbeat row; a database that is away costs a warning."""
        while not self._stop.wait(self._settings.heartbeat_seconds):
            try:
                with transaction(self._sessions) as session:
                    fleet.heartbeat(session, self._worker_id, engine_stats=engine_metrics(self._host.stats))
            except ServiceError as error:
                log.warning("heartbeat failed error=%s", error)
            except Exception:
                log.exception("heartbeat failed")  # the thread must live on: without its row the worker gets no hints
