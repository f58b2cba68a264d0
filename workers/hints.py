"""Sends hints. A lost hint is harmless, so a broker that is down causes a warning and a pause, never an error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from workers.app import CONTROL_QUEUE, FINALISE_TASK, RUN_CHUNK_TASK, VALIDATE_TASK, model_queue

log = logging.getLogger(__name__)

PAUSE_SECONDS = 2.0
MOST_QUEUED = 100
"""Most hints in one queue: more wake no additional worker, and without a worker they would pile up forever."""


class HintSender:
    """Publishes hints through `app`, without an expiry: two machines' clocks may differ by more than a hint lasts.

    Postgres decides how long a hint is valid: `ready_queues.hint_age`.
    """

    def __init__(self, app: Celery, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._monotonic = monotonic
        self._paused_until = 0.0
        self._room: dict[str, int] = {}  # by queue: hints that may be sent before its length is read again

    def validate(self, batch_id: str) -> bool:
        return self._send(VALIDATE_TASK, batch_id, queue=CONTROL_QUEUE)

    def finalise(self, batch_id: str) -> bool:
        return self._send(FINALISE_TASK, batch_id, queue=CONTROL_QUEUE)

    def run_chunk(self, chunk_id: int, *, model: str) -> bool:
        return self._send(RUN_CHUNK_TASK, chunk_id, queue=model_queue(model))

    def _send(self, task: str, argument: str | int, *, queue: str) -> bool:
        """Return whether the broker accepted the hint. After a failure, send nothing for PAUSE_SECONDS."""
        if self._monotonic() < self._paused_until:
            return False
        try:
            if not self._has_room(queue):
                return False
            self._app.send_task(task, args=[argument], queue=queue, routing_key=queue, retry=False)
        except (OperationalError, RedisError, OSError) as error:
            self._paused_until = self._monotonic() + PAUSE_SECONDS
            log.warning("broker unreachable, hint dropped task=%s error=%s", task, error)
            return False
        return True

    def _has_room(self, queue: str) -> bool:
        """Reserve room for one hint; the broker is asked only when the last known room is used up."""
        if self._room.get(queue, 0) <= 0:
            with self._app.producer_pool.acquire(block=True) as producer:
                self._room[queue] = MOST_QUEUED - producer.channel.queue_declare(queue=queue).message_count
        self._room[queue] -= 1
        return self._room[queue] >= 0
