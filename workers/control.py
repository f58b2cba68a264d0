"""The control worker: validates new batches, writes the files of finished ones, sends webhooks. CPU only.

Thin work around `jobs`, in the order of `workers.turns.due_batches`; each claims its batch, so doing it twice is idle.
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

from jobs import chores, decisions, history
from jobs.batches import exact_counts
from jobs.batches.deletion import delete_left
from jobs.batches.finalisation import finalise_batch
from jobs.batches.lifecycle import trace_context
from jobs.batches.sweeps import DueBatch
from jobs.batches.validation import validate_batch
from jobs.database import connect, sessions, transaction
from jobs.errors import ServiceError
from jobs.extractions.advancing import Extractions
from jobs.extractions.deletion import purge_documents, purge_extractions
from jobs.indexes.advancing import Indexes
from jobs.indexes.purging import purge_indexes, sweep_index_objects
from jobs.indexes.questions import embedder_of
from jobs.pipelines.advancing import Runs
from jobs.pipelines.runs.purging import purge_runs
from jobs.retention import drop_days, purge_files, purge_results, purge_uploads, sweep_objects
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import FINALISATION_SECONDS, VALIDATION_SECONDS, control_meters
from jobs.telemetry.meters import Meter, Meters
from jobs.telemetry.traces import NO_TRACES, Traces
from jobs.webhooks import deliveries
from workers import webhooks
from workers.app import CONTROL_QUEUE, FINALISE_TASK, VALIDATE_TASK, make_app
from workers.turns.due_batches import MAX_BATCHES, DueBatches
from workers.turns.extractions import extraction_turns
from workers.turns.indexes import index_turns
from workers.turns.runs import run_turns
from workers.webhooks import WebhookSender

log = logging.getLogger(__name__)

_PURGE_SECONDS = 60.0
_SWEEP_AGAIN = timedelta(hours=6)
_ROLL_UP_AGAIN = timedelta(hours=1)
_HOLD_CONNECTIONS = 2  # each renewal is one statement
_HOLD = timedelta(hours=1)
"""After how long a chore that a worker began is begun by another, or again by this one where it failed."""


class Control:
    """What a control worker does. Losing one to an error is fine: it, or another, looks again."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        meters: Meters | None = None,
        traces: Traces = NO_TRACES,
    ) -> None:
        """`hold_sessions` are for claims alone, on connections of their own; without them they wait for the others."""
        self._sessions = sessions
        self._hold_sessions = hold_sessions
        self._storage = storage
        self._settings = settings
        self._meters = control_meters() if meters is None else meters
        self._traces = traces

    def do(self, due: DueBatch) -> bool:
        """Validate a batch or write its files; return False where another worker is at it."""
        work = self.validate if due.state is BatchState.VALIDATING else self.finalise
        name = "validate" if due.state is BatchState.VALIDATING else "finalise"
        with self._traces.span(name, parent=self._trace_of(due.batch_id), batch_id=due.batch_id):
            return work(due.batch_id) is not None

    def _trace_of(self, batch_id: str) -> str | None:
        if not self._traces.is_on:
            return None
        with transaction(self._sessions) as session:
            return trace_context(session, batch_id)

    def validate(self, batch_id: str) -> BatchState | None:
        began = time.monotonic()
        outcome = validate_batch(
            self._sessions,
            self._storage,
            batch_id,
            settings=self._settings,
            hold_sessions=self._hold_sessions,
            embedder_of=embedder_of,
        )
        self._time(VALIDATION_SECONDS, began, outcome)
        log.info("batch validated batch_id=%s outcome=%s", batch_id, outcome)
        return outcome

    def finalise(self, batch_id: str) -> BatchState | None:
        began = time.monotonic()
        outcome = finalise_batch(
            self._sessions, self._storage, batch_id, settings=self._settings, hold_sessions=self._hold_sessions
        )
        self._time(FINALISATION_SECONDS, began, outcome)
        log.info("batch finalised batch_id=%s outcome=%s", batch_id, outcome)
        return outcome

    def _time(self, meter: Meter, began: float, outcome: BatchState | None) -> None:
        if outcome is not None:  # else another worker was at it
            self._meters.observe(meter, time.monotonic() - began, outcome.value)

    def keep_purging(self, stop: threading.Event) -> None:
        """Purge now and then, until `stop` is set."""
        while not stop.wait(_PURGE_SECONDS):
            self.purge()

    def purge(self) -> None:
        """End what is kept no longer, step by step; one that fails is tried again the next time."""
        retention = timedelta(days=self._settings.retention_days)
        detail = timedelta(days=self._settings.detail_days)
        run_age = timedelta(days=self._settings.run_days)
        age = timedelta(hours=self._settings.leftover_hours)
        unused = timedelta(days=self._settings.document_days)
        steps: dict[str, Callable[[], int]] = {
            "tenants": lambda: delete_left(self._sessions),
            "result days": lambda: len(drop_days(self._sessions, retention=retention)),
            "results": lambda: purge_results(self._sessions, retention=retention),
            "files": lambda: purge_files(self._sessions, self._storage),
            "uploads": lambda: purge_uploads(self._sessions, self._storage),
            # Each lists the whole store, or looks at all that is kept: not each time, and one worker for all.
            "leftovers": lambda: self._in_turn(
                "sweep",
                lambda: (
                    sweep_objects(self._sessions, self._storage, age=age, unused=unused)
                    + sweep_index_objects(self._sessions, self._storage, age=age)
                ),
                again=_SWEEP_AGAIN,
            ),
            "old batches": lambda: self._in_turn(
                "roll up", lambda: history.roll_up(self._sessions, age=detail), again=_ROLL_UP_AGAIN
            ),
            "old runs": lambda: self._in_turn(
                "forget runs", lambda: purge_runs(self._sessions, age=run_age), again=_ROLL_UP_AGAIN
            ),
            "documents": lambda: purge_documents(self._sessions, self._storage),
            "old extractions": lambda: self._in_turn(
                "forget extractions", lambda: purge_extractions(self._sessions, age=run_age), again=_ROLL_UP_AGAIN
            ),
            "indexes": lambda: purge_indexes(self._sessions, self._storage),
            "decisions": lambda: self._in_turn(
                "forget decisions", lambda: decisions.forget(self._sessions), again=_ROLL_UP_AGAIN
            ),
            "webhooks": lambda: self._in_turn(
                "forget webhooks", lambda: deliveries.forget(self._sessions), again=_ROLL_UP_AGAIN
            ),
            "input counts": lambda: self._in_turn("forget input counts", self._forget_counts, again=_ROLL_UP_AGAIN),
            "workers": lambda: self._in_turn(
                "forget workers", lambda: history.forget_workers(self._sessions), again=_ROLL_UP_AGAIN
            ),
        }
        for name, step in steps.items():
            try:
                num_purged = step()
            except ServiceError as error:
                log.warning("purging failed what=%s error=%s", name, error)
            except Exception:
                log.exception("purging failed what=%s", name)
            else:
                if num_purged:
                    log.info("purged what=%s number=%d", name, num_purged)

    def _forget_counts(self) -> int:
        with transaction(self._sessions) as session:
            return exact_counts.forget(session)

    def _in_turn(self, name: str, step: Callable[[], int], *, again: timedelta) -> int:
        """Do a step where it is due, and no other control worker has begun it."""
        with transaction(self._sessions) as session:
            if not chores.claim(session, name, hold=_HOLD):
                return 0
        num = step()
        with transaction(self._sessions) as session:
            chores.finish(session, name, again=again)
        return num


def register(app: Celery, due: DueBatches) -> None:
    """Make the control tasks known to `app`: whichever batch a hint names, the one that is next in turn is taken up."""

    def wake(_batch_id: str) -> None:
        due.wake()

    for name in (VALIDATE_TASK, FINALISE_TASK):
        app.task(name=name)(wake)


def main(settings: Settings) -> None:
    """Run the control role until SIGTERM."""
    meters = control_meters()
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    traces = start_traces(settings.traces_url, role="control", share_of_lines=settings.traces_lines)
    app: Celery = make_app(settings.redis_url, queue=CONTROL_QUEUE)
    connections = MAX_BATCHES + 5 + webhooks.CONNECTIONS  # the looks for the next of each kind; the purge
    maker, stop = sessions(connect(settings.database_url, connections=connections)), threading.Event()
    hold_sessions = sessions(connect(settings.database_url, connections=_HOLD_CONNECTIONS))
    control = Control(maker, Storage.of(settings), settings, hold_sessions=hold_sessions, meters=meters, traces=traces)
    sender = WebhookSender(maker, settings=settings, meters=meters)

    def do(batch: DueBatch) -> bool:
        is_done = control.do(batch)
        for waiting in (sender, due_runs, due_extractions, due_indexes):
            waiting.wake()  # it may have ended
        return is_done

    due = DueBatches(maker, do=do, settings=settings)
    register(app, due)
    runs = Runs(
        maker, Storage.of(settings), settings, hold_sessions=hold_sessions, traces=traces, is_stopping=stop.is_set
    )
    extractions = Extractions(
        maker, Storage.of(settings), settings, hold_sessions=hold_sessions, is_stopping=stop.is_set
    )
    indexes = Indexes(maker, Storage.of(settings), settings, hold_sessions=hold_sessions, is_stopping=stop.is_set)
    due_runs = run_turns(maker, advance=runs.advance, look_seconds=settings.claim_alone_seconds)
    due_extractions = extraction_turns(maker, advance=extractions.advance, look_seconds=settings.claim_alone_seconds)
    due_indexes = index_turns(maker, advance=indexes.advance, look_seconds=settings.claim_alone_seconds)
    due.start()
    sender.start()
    due_runs.start()
    due_extractions.start()
    due_indexes.start()
    threading.Thread(target=control.keep_purging, args=(stop,), name="purge", daemon=True).start()
    exit_code = run_worker(app, name="control", pool_cls="threads", concurrency=1)
    stop.set()
    due.stop()
    sender.stop()
    due_extractions.stop()
    due_indexes.stop()
    due_runs.stop()  # last: a store of a tenant that hangs is waited for
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
