"""The chunk service of one worker: keeps up to K chunks open, sends heartbeats, drains at the end.

Its claimer claims the chunks, and an `Answerer` answers their lines.
"""

from __future__ import annotations

import logging
import threading

from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.database import transaction
from jobs.engines.engine import OWN_ENGINE
from jobs.errors import ServiceError
from workers.chunks.answerer import Answerer
from workers.chunks.claimer import Claimer
from workers.chunks.run import ChunkRun
from workers.chunks.services import Services

log = logging.getLogger(__name__)


class ChunkService:
    """Owns the open chunks of this process. `start` and `close` are called once, by the pool."""

    def __init__(self, *, worker_id: str, model: str, answerer: Answerer, services: Services) -> None:
        self._worker_id = worker_id
        self._model = model
        self._answerer = answerer
        self._services = services
        self._settings = services.settings
        self._max_model_len = 0  # set when the answerer starts
        self._drain = services.drain
        self._engine = OWN_ENGINE  # as of the last heartbeat
        self._claimer = Claimer(
            worker_id=worker_id,
            model=model,
            run=lambda claim: ChunkRun(answerer.open(claim), services).run(),
            engine=lambda: self._engine,
            sessions=services.sessions,
            settings=services.settings,
            drain=services.drain,
            meters=services.meters,
        )
        self._is_noted_out = False
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the answerer, register the worker, and start claiming. Raise what the answerer raises."""
        self._max_model_len = self._answerer.start(is_busy=lambda: not self._claimer.is_idle)
        self._engine = self._answerer.stats().engine
        with transaction(self._services.sessions) as session:
            self._register(session)
        self._heart.start()
        self._claimer.start()
        log.info("worker ready worker_id=%s model=%s", self._worker_id, self._model)

    def run_hinted(self, chunk_id: int) -> None:
        """Follow a hint: wake the claimer, and wait until it has a free slot for the hint's chunk."""
        self._claimer.follow_hint(chunk_id)

    def begin_drain(self) -> None:
        """Claim no more chunks; open ones have `drain_seconds` to finish, then release the rest."""
        self._answerer.drain()
        if not self._drain.is_on:
            log.info("drain started worker_id=%s", self._worker_id)
            self._drain.begin(self._settings.drain_seconds)

    def drain(self) -> None:
        """Begin to drain and wait until no chunk is open."""
        self.begin_drain()
        self._claimer.join()
        self._stop.set()
        self._heart.join()

    def close(self) -> None:
        """Sign off from the fleet and end the answerer."""
        try:
            with transaction(self._services.sessions) as session:
                fleet.stop(session, self._worker_id)
        except ServiceError as error:
            log.warning("could not sign off worker_id=%s error=%s", self._worker_id, error)
        self._answerer.close()
        log.info("worker stopped worker_id=%s", self._worker_id)

    def _register(self, session: Session) -> None:
        fleet.register(
            session,
            worker_id=self._worker_id,
            model=self._model,
            max_chunks=self._settings.worker_chunks,
            max_model_len=self._max_model_len,
            engine=self._engine,
        )

    def _beat(self) -> None:
        """Write the heartbeat row; while the database is down, log a warning."""
        while not self._stop.wait(self._settings.heartbeat_seconds):
            try:
                self._beat_once()
            except ServiceError as error:
                log.warning("heartbeat failed error=%s", error)
            except Exception:
                log.exception("heartbeat failed")  # the thread must survive: without its row the worker gets no hints

    def _beat_once(self) -> None:
        """Report the worker's state and why it is out, if it is; read whether operators let it claim."""
        reason, stats = self._drain.out_reason, self._answerer.stats()
        self._engine = stats.engine
        with transaction(self._services.hold_sessions) as session:
            beat = fleet.heartbeat(
                session,
                self._worker_id,
                engine_stats=stats.metrics,
                running_lines=stats.running_lines,
                out_reason=reason or stats.away_reason,
                engine=stats.engine,
                num_tokens=self._services.tally.num_tokens,
            )
            if not beat.is_known:
                self._register(session)  # its machine slept so long that its row was deleted
            elif reason is not None and not self._is_noted_out:
                fleet.set_draining(session, fleet.find_worker(session, self._worker_id), is_draining=True)
        if reason is not None and self._is_noted_out and beat.is_known and not beat.is_draining:
            self._drain.come_back()  # an operator has resumed it
        self._is_noted_out = beat.is_known and self._drain.is_out and reason is not None
        self._claimer.pause(is_paused=beat.is_draining or stats.away_reason is not None)
