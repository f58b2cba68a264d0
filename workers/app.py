"""The Celery application that carries hints, and its worker. Each role registers the tasks that it runs.

Every setting here follows from one fact: a message may be lost or repeated, because workers poll Postgres as well.
"""

from __future__ import annotations

import socket
import warnings
from typing import Any, TypeVar

from celery import Celery
from celery.exceptions import SecurityWarning
from kombu import Queue

VALIDATE_TASK = "tokenmill.validate_batch"
FINALISE_TASK = "tokenmill.finalise_batch"
RUN_CHUNK_TASK = "tokenmill.run_chunk"
CONTROL_QUEUE = "control"


def model_queue(model: str) -> str:
    """Return the name of the queue that carries the hints of one model."""
    return f"model.{model}"


App = TypeVar("App", bound=Celery)


def make_app(redis_url: str, *, queue: str | None = None, app_class: type[App] = Celery) -> App:
    """Return an app on `redis_url`; a worker of this app reads only `queue`."""
    app = app_class("tokenmill", broker=redis_url, set_as_current=False)
    app.conf.update(
        # Acknowledge early: the lease in Postgres, not the broker, returns lost work.
        task_acks_late=False,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_serializer="json",
        accept_content=["json"],
        # Fetch a hint only when a slot is free: a hint inside a busy worker is kept from idle ones.
        worker_disable_prefetch=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": 5.0,
            "socket_connect_timeout": 2.0,
            "socket_keepalive": True,
            "socket_keepalive_options": _keepalive_options(),
            "health_check_interval": 10,
            "visibility_timeout": 60,
            # By default a sender is blocked for 4 s of connection retries.
            "max_retries": 1,
            "interval_start": 0,
        },
        task_publish_retry=False,
    )
    if queue is not None:
        app.conf.task_queues = [Queue(queue, routing_key=queue)]
        app.conf.task_default_queue = queue
    return app


def run_worker(app: Celery, *, name: str, pool_cls: Any, concurrency: int) -> int:
    """Run a Celery worker in this process until a signal ends it; return its exit code."""
    # Celery warns about running as root because of pickle; our messages are JSON and carry only an id.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    worker = app.Worker(
        hostname=f"{name}@%h",
        pool_cls=pool_cls,
        concurrency=concurrency,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def _keepalive_options() -> dict[int, int]:
    """Detect a lost broker after 10 + 3 × 5 seconds instead of the kernel's two hours."""
    return {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
