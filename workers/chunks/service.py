"""What one GPU worker does: keeps up to K chunks open on one engine, beats its heart, drains at the end.

Its claimer finds the chunks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy.orm import Session, sessionmaker

from engine.process.messages import EngineInfo
from jobs.chunks import fleet
from jobs.chunks.leasing import ClaimedChunk
from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.settings import Settings
from workers.chunks.claimer import Claimer
from workers.chunks.counting import InputCounter
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
        make_parts: Callable[[EngineInfo, Drain], WorkerParts],
        sessions: sessionmaker[Session],
        hold_sessions: sessionmaker[Session],
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_parts` is called once the engine is ready, with what it said of itself.

        `hold_sessions` are for the heartbeat, which waits for no chunk's connection.
        """
        self._worker_id = worker_id
        self._model = model
        self._host = host
        self._make_parts = make_parts
        self._sessions = sessions
        self._hold_sessions = hold_sessions
        self._settings = settings
        self._parts: WorkerParts | None = None
        self._max_model_len = 0  # the engine says it when it starts
        self._drain = Drain(monotonic)
        self._claimer = Claimer(
            worker_id=worker_id, model=model, run=self._run, sessions=sessions, settings=settings, drain=self._drain
        )
        self._counter: InputCounter | None = None
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the engine, announce the worker, and begin to look for work. Raises EngineStartError."""
        info = self._host.start()
        self._parts = self._make_parts(info, self._drain)
        self._max_model_len = info.max_model_len
        with transaction(self._sessions) as session:
            self._register(session)
        self._heart.start()
        self._claimer.start()
        self._counter = InputCounter(self._parts, model=self._model, is_busy=lambda: not self._claimer.is_idle)
        self._counter.start()
        log.info(
            "worker ready worker_id=%s model=%s device=%s dtype=%s products=%s",
            *(self._worker_id, self._model, info.device, info.dtype, info.products),
        )

    def run_hinted(self, chunk_id: int) -> None:
        """Answer a hint: wake the claimer, and wait until it has a slot free for what the hint names."""
        self._claimer.follow_hint(chunk_id)

    def begin_drain(self) -> None:
        """Take no more chunks; open ones get `drain_seconds` to finish, then give their rest back."""
        if self._counter is not None:
            self._counter.stop()
        if not self._drain.is_on:
            log.info("drain started worker_id=%s", self._worker_id)
            self._drain.begin(self._settings.drain_seconds)

    def drain(self) -> None:
        """Begin to drain and wait until no chunk is open."""
        self.begin_drain()
        self._claimer.join()
        if self._counter is not None:
            self._counter.join()
        self._stop.set()
        self._heart.join()

    def close(self) -> None:
        """Say goodbye in the fleet and stop the engine."""
        try:
            with transaction(self._sessions) as session:
                fleet.stop(session, self._worker_id)
        except ServiceError as error:
            log.warning("could not sign off worker_id=%s error=%s", self._worker_id, error)
        self._host.close()
        log.info("worker stopped worker_id=%s", self._worker_id)

    def _run(self, claim: ClaimedChunk) -> bool:
        assert self._parts is not None, "start() first"
        return ChunkRun(claim, self._parts).run()

    def _register(self, session: Session) -> None:
        fleet.register(
            session,
            worker_id=self._worker_id,
            model=self._model,
            max_chunks=self._settings.worker_chunks,
            max_model_len=self._max_model_len,
        )

    def _beat(self) -> None:
        """Write the heartbeat row; a database that is away costs a warning."""
        while not self._stop.wait(self._settings.heartbeat_seconds):
            try:
                with transaction(self._hold_sessions) as session:
                    stats = engine_metrics(self._host.stats)
                    if not fleet.heartbeat(session, self._worker_id, engine_stats=stats):
                        self._register(session)  # its machine slept for so long that it was forgotten
            except ServiceError as error:
                log.warning("heartbeat failed error=%s", error)
            except Exception:
                log.exception("heartbeat failed")  # the thread must live on: without its row the worker gets no hints
