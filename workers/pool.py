"""Celery's pool for a GPU worker: one thread for hints, and a chunk service around one long-lived engine.

A bootstep would be the wrong place for the engine: bootsteps stop before the pool has drained.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.concurrency.thread import TaskPool

from engine.errors import EngineStartError
from jobs.errors import ServiceError

if TYPE_CHECKING:
    from workers.chunks.service import ChunkService

log = logging.getLogger(__name__)


class EnginePool(TaskPool):
    """Runs `run_chunk` tasks in a thread; starts the app's chunk service with the pool and drains it at the end.

    The app carries the service as `app.chunk_service`.
    """

    @property
    def _service(self) -> ChunkService:
        return self.app.chunk_service

    def on_start(self) -> None:
        try:
            self._service.start()
        except (EngineStartError, ServiceError) as error:
            log.error("worker does not start reason=%s", error)
            raise SystemExit(1) from None  # which Celery takes for a request to stop; a traceback would tell no more

    def on_stop(self) -> None:
        # Called by a warm shutdown (SIGTERM) once no more hints are taken: finish what is nearly done, give back
        # the rest, and only then end the threads and the engine.
        self._service.drain()
        super().on_stop()
        self._service.close()

    def on_terminate(self) -> None:
        self.on_stop()

    def terminate_job(self, pid: int | None = None, signal: Any = None) -> None:
        """Drain everything: chunks share one engine, so none is ended alone (cold shutdown, SIGQUIT)."""
        self._service.begin_drain()
