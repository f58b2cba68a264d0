"""The dispatcher: returns lost leases, advances batches, picks the next chunks by fair share, sends hints.

Any number may run. Each polls several times a second for work, and an advisory lock lets one of them run the tick. A
tick decides inside one transaction and sends hints after the commit: an earlier hint could reach a worker before there
is anything to claim. Work that needs the object store has its own thread, so that a hanging store blocks nothing else.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.scheduling.due_turns import DueTurns
from jobs import chores, metrics, uptime
from jobs.batches import due, following, sweeps
from jobs.batches.due import Due
from jobs.batches.lost_leases import Reaped, reap_expired, reap_suspects
from jobs.chunks import deferring, fleet, queue_marks, ready_queues, waiting
from jobs.database import BRIEF_SECONDS, autocommit, connect, sessions, transaction, try_advisory_lock
from jobs.errors import ServiceError
from jobs.forecasts import snapshot
from jobs.overview import plots
from jobs.scaling.limits import limits_by_model
from jobs.settings import Settings
from jobs.storage import Storage, store_marker
from jobs.telemetry import serving
from jobs.telemetry.collector import start_traces
from jobs.telemetry.declared import DISPATCHER, HINTS, LOST_LEASES, TICK_SECONDS
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import NO_TRACES, Traces
from workers.app import make_app
from workers.hints import HintSender
from workers.turns.control_wakes import ControlWakes

log = logging.getLogger(__name__)

_LEADER_LOCK = "dispatcher"
_TRUE_UP_SECONDS = 5.0
"""Minimum interval between corrections of the queues while batches are open, and maximum interval between ticks."""
_UPTIME_SECONDS = 1.0
"""Minimum interval between records of the database being up."""
_COUNT = "count the queue"
_COUNT_LOOK_SECONDS = 5.0
_COUNT_SECONDS = 15.0  # minimum interval between counts
_COUNT_SHARE = 20.0  # the interval is at least this many times the duration of a count,
_COUNT_SECONDS_AT_MOST = 240.0  # but at most this
_FORECAST = "forecast batches"
_FORECAST_SECONDS = 5.0
_PLOT = "keep points of plots"
_PLOT_SECONDS = 15.0
_AT_REST = 2
"""Factor by which the poll interval grows while no batch is open."""
_SCHEDULES_SECONDS = 2.0  # cron expressions have a resolution of one minute


class Hints(Protocol):
    """The methods of `workers.hints.HintSender` that the dispatcher needs."""

    def validate(self, batch_id: str) -> bool: ...
    def finalise(self, batch_id: str) -> bool: ...
    def run_chunk(self, chunk_id: int, *, model: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of one tick: hints to send, and the outcomes of lost leases."""

    validate: Sequence[str] = ()
    finalise: Sequence[str] = ()
    run: Sequence[tuple[str, int]] = ()  # (model, chunk id), best first
    lost: Sequence[Reaped] = ()
    trace_contexts: Mapping[int, str] = field(default_factory=dict)  # by chunk id: the traced ones of `run`


class Dispatcher:
    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        *,
        hints: Hints,
        settings: Settings,
        meters: Meters | None = None,
        traces: Traces = NO_TRACES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sessions = sessions
        self._storage = storage
        self._hints = hints
        self._settings = settings
        self._meters = meters or Meters(DISPATCHER)
        self._traces = traces
        self._is_any_open = False
        self._has_opened = threading.Event()
        self._has_lost_leases = threading.Event()
        self._waiting_round = waiting.Round()
        self._due_turns = DueTurns(sessions, monotonic=monotonic)
        self._control_wakes = ControlWakes(monotonic=monotonic)
        self._monotonic = monotonic
        self._ticked_at = self._trued_up_at = self._noted_at = -math.inf

    def run(self, stop: threading.Event) -> None:
        """Poll and tick until `stop` is set. While the database is down, each poll only logs a warning."""
        # Daemons: the store may block one of them for longer than this process may take to end.
        threading.Thread(target=self._look_at_suspects, args=(stop,), name="suspects", daemon=True).start()
        threading.Thread(target=self._keep_counting, args=(stop,), name="count", daemon=True).start()
        threading.Thread(target=self._keep_schedules, args=(stop,), name="schedules", daemon=True).start()
        try:
            while not stop.is_set():
                try:
                    self._keep_looking(stop)
                except ServiceError as error:
                    log.warning("database unreachable, tick skipped error=%s", error)
        finally:
            self._has_lost_leases.set()
            self._has_opened.set()

    def _keep_looking(self, stop: threading.Event) -> None:
        """Poll until `stop` is set, on one connection: most of the cost of a poll is the round trip."""
        again = self._settings.hint_again_seconds
        with autocommit(self._sessions) as session:
            while not stop.wait(self._look_seconds):
                self._act(due.look(session, again_seconds=again))

    @property
    def _look_seconds(self) -> float:
        """Return the poll interval: longer at rest, so that an idle stack is quiet and the first batch waits longer."""
        return self._settings.dispatch_seconds * (1 if self._is_any_open else _AT_REST)

    def _act(self, work: Due) -> None:
        if work.is_any_open and not self._is_any_open:
            self._has_opened.set()
        self._is_any_open = work.is_any_open
        if work.has_lost_leases:
            self._has_lost_leases.set()
        is_long_ago = self._monotonic() - self._ticked_at >= _TRUE_UP_SECONDS
        if work.is_any or (work.is_any_open and is_long_ago):
            self.tick()

    def _look_at_suspects(self, stop: threading.Event) -> None:
        while self._has_lost_leases.wait() and not stop.is_set():
            self._has_lost_leases.clear()
            try:
                self.reap_suspects()
            except ServiceError as error:
                log.warning("database unreachable, suspects wait error=%s", error)
            except Exception:
                log.exception("suspects wait")  # the thread must survive: no other decides on suspects

    def _keep_counting(self, stop: threading.Event) -> None:
        """Count periodically. Forecast while batches are open, as soon as one opens and once after the last ends."""
        was_any_open = True
        while True:
            self._has_opened.wait(_COUNT_LOOK_SECONDS if self._is_any_open else _COUNT_SECONDS)
            self._has_opened.clear()
            if stop.is_set():
                return
            is_any_open = self._is_any_open
            try:
                self.count_queue()
                if is_any_open or was_any_open:
                    self.forecast()
                else:
                    self.forecast_at_rest()
                self.keep_plots()
                was_any_open = is_any_open
            except ServiceError as error:
                log.warning("database unreachable, the queue is not counted error=%s", error)
            except Exception:
                log.exception("the queue is not counted")  # the thread must survive

    def _keep_schedules(self, stop: threading.Event) -> None:
        while not stop.wait(_SCHEDULES_SECONDS):
            try:
                self.make_due_runs()
            except ServiceError as error:
                log.warning("database unreachable, schedules wait error=%s", error)
            except Exception:
                log.exception("schedules wait")  # the thread must survive

    def make_due_runs(self) -> None:
        """Create the runs of due schedules and report late ones. Needs no leader: each row is locked."""
        self._due_turns.make_due_runs()

    def count_queue(self) -> None:
        """Count for `/metrics` if due and no other dispatcher does it; a long queue is counted less often."""
        self._in_turn(_COUNT, metrics.count_queue, every_seconds=_COUNT_SECONDS)

    def forecast(self) -> None:
        """Forecast every batch's end if due and no other dispatcher does it."""
        self._in_turn(_FORECAST, snapshot.take, every_seconds=_FORECAST_SECONDS)

    def forecast_at_rest(self) -> None:
        """Measure without open batches where the number of workers depends on it: an old measurement is not trusted."""
        with transaction(self._sessions) as session:
            is_scaled = bool(limits_by_model(session))
        if is_scaled:
            self.forecast()

    def keep_plots(self) -> None:
        """Add new points to the plots if due and no other dispatcher does it."""
        self._in_turn(_PLOT, plots.take, every_seconds=_PLOT_SECONDS)

    def _in_turn(self, name: str, look: Callable[[Session], object], *, every_seconds: float) -> None:
        with transaction(self._sessions) as session:
            if not chores.claim(session, name, hold=metrics.COUNTED_WITHIN):
                return
        began = time.monotonic()
        with transaction(self._sessions) as session:
            look(session)
        seconds = min(max(every_seconds, _COUNT_SHARE * (time.monotonic() - began)), _COUNT_SECONDS_AT_MOST)
        with transaction(self._sessions) as session:
            chores.finish(session, name, again=timedelta(seconds=seconds))

    def reap_suspects(self) -> None:
        """End the lost leases that need the input's lines. Needs no leader: each is locked when it is ended."""
        self._note_uptime()
        self._count_lost(reap_suspects(self._sessions, self._storage, lease=self._settings.lease))

    def tick(self) -> Plan:
        """Decide and commit, then send. Return the plan, which is empty if another dispatcher leads."""
        began = self._ticked_at = self._monotonic()
        self._note_uptime()
        with transaction(self._sessions) as session:
            if not try_advisory_lock(session, _LEADER_LOCK):
                return Plan()
            plan = self._decide(session)
        self._count_lost(plan.lost)
        self._send(plan)
        self._meters.observe(TICK_SECONDS, self._monotonic() - began)
        self._true_up_if_due()
        return plan

    def _note_uptime(self) -> None:
        """Record that the database is up, before any decision on leases that ended while it was down."""
        if self._monotonic() - self._noted_at < _UPTIME_SECONDS:
            return
        with transaction(self._sessions) as session:
            uptime.note(session, pause=max(self._settings.lease / 2, timedelta(seconds=2 * _TRUE_UP_SECONDS)))
        self._noted_at = self._monotonic()

    def _true_up_if_due(self) -> None:
        if self._monotonic() - self._trued_up_at >= _TRUE_UP_SECONDS:
            queue_marks.follow_batches(self._sessions)
            queue_marks.true_up(self._sessions)
            self._trued_up_at = self._monotonic()

    def _decide(self, session: Session) -> Plan:
        lost = reap_expired(session, lease=self._settings.lease)
        sweeps.expire_overdue(session)
        sweeps.finish_ready(session)
        waiting.wake(session, self._waiting_round)
        deferring.resume(session)
        following.fail_followers(session)  # late, as it locks budgets
        again = self._settings.hint_again_seconds
        return Plan(
            validate=sweeps.pick_for_validation(session, again_seconds=again),
            finalise=sweeps.pick_for_finalizing(session, again_seconds=again),
            run=(run := self._pick_chunks(session)),
            lost=tuple(lost),
            trace_contexts=self._traced(session, run),
        )

    def _traced(self, session: Session, run: Sequence[tuple[str, int]]) -> dict[int, str]:
        if not run or not self._traces.is_on:
            return {}
        return ready_queues.trace_contexts(session, [chunk_id for _, chunk_id in run])

    def _pick_chunks(self, session: Session) -> list[tuple[str, int]]:
        picked: list[tuple[str, int]] = []
        for model in fleet.live_models(session):
            allowance = fleet.hint_allowance(session, model, again_seconds=self._settings.hint_again_seconds)
            if allowance > 0:
                chunk_ids = ready_queues.pick_ready(
                    session,
                    model=model,
                    limit=allowance,
                    again_seconds=self._settings.hint_again_seconds,
                    urgent_tokens=self._settings.tenant_urgent_tokens,
                )
                picked.extend((model, chunk_id) for chunk_id in chunk_ids)
        return picked

    def _send(self, plan: Plan) -> None:
        due = [("validate", self._hints.validate, batch_id) for batch_id in plan.validate]
        due += [("finalise", self._hints.finalise, batch_id) for batch_id in plan.finalise]
        for kind, send, batch_id in due[: self._control_wakes.take(len(due))]:
            self._count_hint(kind, is_sent=send(batch_id))
        for model, chunk_id in plan.run:
            with self._traces.span("hint", parent=plan.trace_contexts.get(chunk_id), chunk_id=chunk_id) as span:
                is_sent = self._hints.run_chunk(chunk_id, model=model)
                span.set(is_sent=is_sent)
            self._count_hint("run", is_sent=is_sent)

    def _count_hint(self, kind: str, *, is_sent: bool) -> None:
        self._meters.count(HINTS, kind, "sent" if is_sent else "dropped")

    def _count_lost(self, outcomes: Sequence[Reaped]) -> None:
        for outcome in outcomes:
            self._meters.count(LOST_LEASES, outcome.value)


def main(settings: Settings) -> None:
    """Run the dispatcher role until SIGTERM or SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    meters = Meters(DISPATCHER)
    serving.serve(meters.registry, host=settings.metrics_host, port=settings.metrics_port)
    traces = start_traces(settings.traces_url, role="dispatcher", share_of_lines=settings.traces_lines)
    hints = HintSender(make_app(settings.redis_url))
    log.info("dispatcher started")
    maker, storage = sessions(connect(settings.database_url, idle_seconds=BRIEF_SECONDS)), Storage.of(settings)
    store_marker.bind(maker, storage)
    Dispatcher(maker, storage, hints=hints, settings=settings, meters=meters, traces=traces).run(stop)
    log.info("dispatcher stopped")
