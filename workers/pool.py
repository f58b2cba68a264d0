"""Celery's pool of a chunk worker: one thread for hints, and a chunk service around the answerer of lines.

The engine is not a bootstep because bootsteps stop before the pool has drained.
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
from workers.app import RUN_CHUNK_TASK, make_app, model_queue, run_worker
from workers.chunks.answerer import Answerer
from workers.chunks.service import ChunkService
from workers.chunks.services import Services

log = logging.getLogger(__name__)


class ChunkApp(Celery):
    """A Celery app that carries the chunk service to its pool."""

    chunk_service: ChunkService


class ChunkPool(TaskPool):
    """Runs `run_chunk` tasks in a thread; starts its `ChunkApp`'s service with the pool and drains it at the end."""

    @property
    def _service(self) -> ChunkService:
        return self.app.chunk_service

    def on_start(self) -> None:
        try:
            self._service.start()
        except (EngineStartError, ServiceError) as error:
            log.error("worker does not start reason=%s", error)
            raise SystemExit(1) from None  # Celery treats it as a request to stop; a traceback would add nothing

    def on_stop(self) -> None:
        # Called by a warm shutdown (SIGTERM) once no more hints are accepted: finish what is nearly done, release the
        # rest, and only then end the threads and the answerer.
        self._service.drain()
        super().on_stop()
        self._service.close()

    def on_terminate(self) -> None:
        self.on_stop()

    def terminate_job(self, pid: int | None = None, signal: Any = None) -> None:
        """Drain all chunks, as they share one answerer and none can end alone (cold shutdown, SIGQUIT)."""
        self._service.begin_drain()


def serve_chunks(answerer: Answerer, services: Services, *, model: str, worker_id: str, is_hinted: bool = True) -> int:
    """Answer the chunks of `model` until SIGTERM; return the exit code.

    A worker that is not hinted claims by itself alone: its queue is its own, and nobody sends to it.
    """
    queue = model_queue(model if is_hinted else worker_id)
    app = make_app(services.settings.redis_url, queue=queue, app_class=ChunkApp)
    app.chunk_service = ChunkService(worker_id=worker_id, model=model, answerer=answerer, services=services)
    app.task(name=RUN_CHUNK_TASK)(app.chunk_service.run_hinted)
    drain_when_told(app.chunk_service.begin_drain)
    # One hint at a time: while no slot is free it waits here, and the next hints stay in the queue for other workers.
    return run_worker(app, name=worker_id, pool_cls=ChunkPool, concurrency=1)


def drain_when_told(begin_drain: Callable[[], None]) -> None:
    """Begin to drain as soon as this process gets a signal to end.

    Celery stops its pool only once the broker call of its main thread returns; a hanging broker takes seconds of the
    chunks' grace period.
    """
    signalled = threading.Event()

    def drain() -> None:
        signalled.wait()
        begin_drain()

    threading.Thread(target=drain, name="drain", daemon=True).start()
    # Called from a signal handler, which may have interrupted anything, so it only wakes the thread.
    worker_shutting_down.connect(lambda **_: signalled.set(), weak=False)
