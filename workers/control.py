"""The control worker: validates new batches and writes the files of finished ones. CPU only.

Thin tasks around `jobs`; each takes an advisory lock, so a repeated hint does nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.exceptions import SecurityWarning
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.database import connect, sessions, transaction
from jobs.errors import ServiceError
from jobs.retention import purge_files, purge_results
from jobs.settings import Settings
from jobs.storage import Storage
from workers import logs
from workers.app import CONTROL_QUEUE, FINALISE_TASK, VALIDATE_TASK, make_app

log = logging.getLogger(__name__)

_CONCURRENCY = 2
_PURGE_SECONDS = 3600.0
_PURGE_FILES = 100  # a transaction


class Control:
    """What the control tasks do. Losing one to an error is fine: the dispatcher hints again."""

    def __init__(self, sessions: sessionmaker[Session], storage: Storage, settings: Settings) -> None:
        self._sessions = sessions
        self._storage = storage
        self._settings = settings

    def validate(self, batch_id: str) -> None:
        with transaction(self._sessions) as session:
            outcome = validate_batch(session, self._storage, batch_id, settings=self._settings)
        log.info("batch validated batch_id=%s outcome=%s", batch_id, outcome)

    def finalise(self, batch_id: str) -> None:
        with transaction(self._sessions) as session:
            outcome = finalise_batch(session, self._storage, batch_id)
        log.info("batch finalised batch_id=%s outcome=%s", batch_id, outcome)

    def help_alone(self, stop: threading.Event) -> None:
        """Until `stop` is set: find overdue work without hints (the broker is down), and purge now and then."""
        purge_at = time.monotonic()
        while not stop.wait(self._settings.claim_alone_seconds):
            try:
                self._help_once()
                if time.monotonic() >= purge_at:
                    purge_at = time.monotonic() + _PURGE_SECONDS
                    self.purge()
            except ServiceError as error:
                log.warning("looking for overdue work failed error=%s", error)
            except Exception:
                log.exception("looking for overdue work failed")

    def purge(self) -> None:
        """Delete the objects of expired and deleted files, and drop days of results past their retention."""
        num_files = 0
        while num_purged := self._purge_some_files():
            num_files += num_purged
        with transaction(self._sessions) as session:
            days = purge_results(session, retention=timedelta(days=self._settings.retention_days))
        log.info("purged files=%d result_days=%d", num_files, len(days))

    def _purge_some_files(self) -> int:
        with transaction(self._sessions) as session:
            return purge_files(session, self._storage, limit=_PURGE_FILES)

    def _help_once(self) -> None:
        overdue_seconds = self._settings.claim_alone_seconds
        with transaction(self._sessions) as session:
            validate = sweeps.overdue_validation(session, hinted_before_seconds=overdue_seconds)
            finalise = sweeps.overdue_finalizing(session, hinted_before_seconds=overdue_seconds)
        for batch_id in validate:
            _attempt(self.validate, batch_id)
        for batch_id in finalise:
            _attempt(self.finalise, batch_id)


def _attempt(work: Callable[[str], None], batch_id: str) -> None:
    """Do the work of one batch; where it fails, that is recorded and the batches behind it get their turn."""
    try:
        work(batch_id)
    except ServiceError as error:
        log.warning("work without a hint failed batch_id=%s error=%s", batch_id, error)
    except Exception:
        log.exception("work without a hint failed batch_id=%s", batch_id)


def register(app: Celery, control: Control) -> None:
    """Make the control tasks known to `app`."""
    app.task(name=VALIDATE_TASK)(control.validate)
    app.task(name=FINALISE_TASK)(control.finalise)


def main(settings: Settings) -> None:
    """Run the control role until SIGTERM."""
    logs.configure("control")
    app: Celery = make_app(settings.redis_url, queue=CONTROL_QUEUE)
    control = Control(sessions(connect(settings.database_url)), Storage.of(settings), settings)
    register(app, control)
    stop = threading.Event()
    helper = threading.Thread(target=control.help_alone, args=(stop,), name="help-alone", daemon=True)
    helper.start()
    exit_code = run_worker(app, name="control", pool_cls="threads", concurrency=_CONCURRENCY)
    stop.set()
    sys.exit(exit_code)


def run_worker(app: Celery, *, name: str, pool_cls: Any, concurrency: int) -> int:
    """Run a Celery worker in this process until a signal ends it; return its exit code."""
    # Celery warns of running as root because of pickle; our messages are JSON and carry an id.
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
