"""The control worker: validates new batches, writes the files of finished ones, sends webhooks. CPU only.

A thin layer over `jobs`, in the order of `workers.turns.due_batches`. Each task claims its batch, so that a second
worker on the same batch does nothing.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

from celery import Celery
from sqlalchemy.orm import Session, sessionmaker

from features import meters_of, parts
from jobs.batches.finalisation import finalise_batch
from jobs.batches.lifecycle import trace_context
from jobs.batches.sweeps import DueBatch
from jobs.batches.validation import validate_batch
from jobs.database import connect, sessions, transaction
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.storage import Storage, store_marker
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import CONTROL, FINALISATION_SECONDS, VALIDATION_SECONDS
from jobs.telemetry.meters import Meter, Meters
from jobs.telemetry.traces import NO_TRACES, Traces
from workers.app import CONTROL_QUEUE, FINALISE_TASK, VALIDATE_TASK, make_app, run_worker
from workers.control_work import ControlParts, Running
from workers.purging import Purging
from workers.turns.due_batches import MAX_BATCHES, DueBatches
from workers.turns.flow_turns import CONNECTIONS
from workers.turns.flow_work import flow_turns

log = logging.getLogger(__name__)

_HOLD_CONNECTIONS = 2  # each renewal is one statement
_OTHERS = 2  # polling for the next batch, and the purge


class Control:
    """The tasks of a control worker. One that fails is polled again, by this worker or another."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        meters: Meters | None = None,
        traces: Traces = NO_TRACES,
        has_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`hold_sessions` renew claims on separate connections; without them, renewals share those of `sessions`.

        `has_ended` is called when a batch has ended, or is held.
        """
        self._sessions = sessions
        self._hold_sessions = hold_sessions
        self._storage = storage
        self._settings = settings
        self._meters = meters or Meters(CONTROL)
        self._traces = traces
        self._has_ended = has_ended

    def do(self, due: DueBatch) -> bool:
        """Validate a batch or write its files; return False if another worker has claimed it."""
        work = self.validate if due.state is BatchState.VALIDATING else self.finalise
        name = "validate" if due.state is BatchState.VALIDATING else "finalise"
        with self._traces.span(name, parent=self._trace_of(due.batch_id), batch_id=due.batch_id):
            outcome = work(due.batch_id)
        if outcome in TERMINAL_BATCH_STATES or outcome is BatchState.VALIDATING:
            self._has_ended()
        return outcome is not None

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
        if outcome is not None:  # None: another worker had claimed it
            self._meters.observe(meter, time.monotonic() - began, outcome.value)


def register(app: Celery, due: DueBatches) -> None:
    """Register the control tasks with `app`. A hint only wakes: the next batch in order runs, not the one it names."""

    def wake(_batch_id: str) -> None:
        due.wake()

    for name in (VALIDATE_TASK, FINALISE_TASK):
        app.task(name=name)(wake)


def main(settings: Settings) -> None:
    """Run the control role until SIGTERM."""
    meters = Meters((*CONTROL, *meters_of("control")))
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    traces = start_traces(settings.traces_url, role="control", share_of_lines=settings.traces_lines)
    app: Celery = make_app(settings.redis_url, queue=CONTROL_QUEUE)
    works = parts("control")
    connections = _OTHERS + MAX_BATCHES + CONNECTIONS + sum(work.connections for work in works)
    maker, stop = sessions(connect(settings.database_url, connections=connections)), threading.Event()
    hold_sessions = sessions(connect(settings.database_url, connections=_HOLD_CONNECTIONS))
    storage = Storage.of(settings)
    store_marker.bind(maker, storage)
    running: list[Running] = []

    def has_ended() -> None:
        for each in running:
            each.wake()  # it may wait for this batch, or hold it

    control = Control(
        maker,
        storage,
        settings,
        hold_sessions=hold_sessions,
        meters=meters,
        traces=traces,
        has_ended=has_ended,
    )
    handed = ControlParts(
        sessions=maker,
        hold_sessions=hold_sessions,
        storage=storage,
        settings=settings,
        meters=meters,
        traces=traces,
        is_stopping=stop.is_set,
    )
    recipes = [make_recipe(handed) for make_recipe in parts("recipes")]
    running += [flow_turns(recipes, handed), *(work.make(handed) for work in works)]
    due = DueBatches(maker, do=control.do, settings=settings)
    register(app, due)
    due.start()
    for each in running:
        each.start()
    threading.Thread(target=Purging(maker, storage, settings).keep_on, args=(stop,), name="purge", daemon=True).start()
    exit_code = run_worker(app, name="control", pool_cls="threads", concurrency=1)
    stop.set()
    due.stop()
    for each in reversed(running):  # pipeline runs last: a tenant's store may hang
        each.stop()
    sys.exit(exit_code)
