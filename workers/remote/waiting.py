"""Waits for a server that is away when its worker starts; the worker's row in the fleet tells why meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import fleet
from jobs.database import transaction
from jobs.engines.engine import UNKNOWN_ENGINE, Spill
from jobs.errors import ServiceError
from workers.remote.identity import AwayError

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 30.0

Found = TypeVar("Found")


def wait_for(
    find: Callable[[], Found],
    away: AwayError,
    *,
    show: Callable[[str], None],
    sleep: Callable[[float], object] = time.sleep,
) -> Found:
    """Call `find` until the server answers; `show` gets each reason why it does not. Raise what else `find` raises."""
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        log.warning("waiting for the server reason=%s", away)
        show(str(away))
        sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _MOST_PAUSE_SECONDS)
        try:
            return find()
        except AwayError as error:
            away = error


@dataclass(slots=True, kw_only=True)
class WaitingWorker:
    """The row of a worker that claims nothing yet; one thread keeps it alive."""

    worker_id: str
    model: str | None
    """None, if only the server knows it: then there is no row."""
    sessions: sessionmaker[Session]
    heartbeat_seconds: float
    spill: Spill | None = None
    _reason: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def shown(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=[stop], name="waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def show(self, reason: str) -> None:
        """Write the reason into the row."""
        with self._lock:
            self._reason = reason
            self._write()

    def _write(self) -> None:
        """Write the last reason; under the lock, so that no older one is written after it."""
        if self.model is None:
            return
        try:
            with transaction(self.sessions) as session:
                if not fleet.heartbeat(session, self.worker_id, out_reason=self._reason).is_known:
                    self._register(session, self.model)
        except ServiceError as error:
            log.warning("heartbeat failed error=%s", error)

    def _register(self, session: Session, model: str) -> None:
        fleet.register(
            session,
            worker_id=self.worker_id,
            model=model,
            max_chunks=0,
            max_model_len=0,
            engine=replace(UNKNOWN_ENGINE, spill=self.spill),
            out_reason=self._reason,
        )

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(self.heartbeat_seconds):
            try:
                with self._lock:
                    self._write()
            except Exception:
                log.exception("heartbeat failed")  # the thread must survive: without its row nobody knows of the worker
