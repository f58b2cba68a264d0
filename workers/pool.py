"""Celery's pool for a worker of chunks: one thread for hints, and a chunk service around what answers the lines.

A bootstep would be the wrong place for an engine: bootsteps stop before the pool has drained.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.signals import worker_shutting_down

from engine.errors import EngineStartError
from jobs.errors import ServiceError
from workers.app import RUN_CHUNK_TASK, make_app, model_queue
from workers.chunks.answerer import Answerer
from workers.chunks.service import ChunkService
from workers.chunks.services import Services
from workers.control import run_worker

log = logging.getLogger(__name__)


class ChunkApp(Celery):
    """A Celery app that carries the chunk service to its pool."""

    chunk_service: ChunkService


class ChunkPool(TaskPool):
    """Runs `run_chunk` tasks in a thread; starts the service of its `ChunkApp` with the pool, drains it at the end."""

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
        # the rest, and only then end the threads and the answerer.
        self._service.drain()
        super().on_stop()
        self._service.close()

    def on_terminate(self) -> None:
        self.on_stop()

    def terminate_job(self, pid: int | None = None, signal: Any = None) -> None:
        """Drain everything: chunks share one answerer, so none is ended alone (cold shutdown, SIGQUIT)."""
        self._service.begin_drain()


def serve_chunks(answerer: Answerer, services: Services, *, model: str, worker_id: str) -> int:
    """Have the chunks of `model` answered until SIGTERM; return the exit code."""
    app = make_app(services.settings.redis_url, queue=model_queue(model), app_class=ChunkApp)
    app.chunk_service = ChunkService(worker_id=worker_id, model=model, answerer=answerer, services=services)
    app.task(name=RUN_CHUNK_TASK)(app.chunk_service.run_hinted)
    drain_when_told(app.chunk_service.begin_drain)
    # One hint at a time: while no slot is free it waits here, and the next one in the queue for other workers.
    return run_worker(app, name=worker_id, pool_cls=ChunkPool, concurrency=1)


def drain_when_told(begin_drain: Callable[[], None]) -> None:
    """Begin to drain as soon as this process is told to end.

    Celery stops its pool once the broker lets its main thread go: one that hangs takes seconds of the time in which
    chunks could finish.
    """
    told = threading.Event()

    def drain() -> None:
        told.wait()
        begin_drain()

    threading.Thread(target=drain, name="drain", daemon=True).start()
    # Called from a signal's handler, which may have interrupted anything: so it does no more than wake the thread.
    worker_shutting_down.connect(lambda **_: told.set(), weak=False)
