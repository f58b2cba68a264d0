"""Creates the runs of due schedules in small transactions, in turns between tenants; none blocks the others."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.runs.events import is_any_late, tell_of_late_runs
from features.pipelines.scheduling.due import DueSchedule, find_due, insert_due_runs, is_any_due
from features.pipelines.scheduling.watch import note_look
from jobs.database import autocommit, transaction
from jobs.errors import ServiceError
from protocol.turns import TurnQueue

log = logging.getLogger(__name__)

AT_ONCE = 50
"""Schedules per transaction."""
BUSY_SECONDS = 2.0
"""Pause before a locked schedule is tried again."""
FAILED_SECONDS = 60.0
"""Pause before a schedule whose runs could not be created is tried again."""
QUIET_TIMES = 10
"""Late runs are not looked for during this many times as long as it took: all runs under way are read for it."""


class DueTurns:
    """Creates due runs; one instance per process, used by one thread."""

    def __init__(self, sessions: sessionmaker[Session], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._sessions = sessions
        self._monotonic = monotonic
        self._queue: TurnQueue[DueSchedule] = TurnQueue()
        self._aside: dict[str, float] = {}  # until when a schedule is skipped
        self._quiet_until = -math.inf

    def make_due_runs(self) -> None:
        """Create the runs of all due schedules, and report late runs between transactions.

        Raise ServiceError if the database is down; the rest is left for the next call.
        """
        goes_on = True
        while goes_on:
            goes_on = self.make_some()
            self._tell_of_late_runs()

    def _tell_of_late_runs(self) -> None:
        began_at = self._monotonic()
        if began_at < self._quiet_until:
            return
        with autocommit(self._sessions) as session:
            is_any = is_any_late(session)
        if is_any:
            with transaction(self._sessions) as session:
                tell_of_late_runs(session)
        now = self._monotonic()
        self._quiet_until = now + QUIET_TIMES * (now - began_at)

    def make_some(self) -> bool:
        """Create the runs of up to AT_ONCE due schedules; return False if there were fewer."""
        now = self._monotonic()
        self._aside = {schedule_id: until for schedule_id, until in self._aside.items() if until > now}
        with autocommit(self._sessions) as session:  # without a transaction: at rest round trips are what a poll costs
            note_look(session)
            due = find_due(session, at_least=AT_ONCE, aside=self._aside) if is_any_due(session) else ()
        chosen = next_in_turn(self._queue, due)
        if chosen:
            self._make([each.id for each in chosen])
        return len(chosen) == AT_ONCE

    def _make(self, schedule_ids: Sequence[str]) -> None:
        """Create the runs of these schedules in one transaction; if it fails, in one for each, to isolate the cause."""
        try:
            self._insert(schedule_ids)
        except Exception as error:  # noqa: BLE001 - no error may block more than one schedule
            log.warning("runs are made one by one, as they cannot be together error=%s", error)
            for schedule_id in schedule_ids:
                self._make_alone(schedule_id)

    def _make_alone(self, schedule_id: str) -> None:
        try:
            self._insert([schedule_id])
        except ServiceError:
            self._set_aside(schedule_id, BUSY_SECONDS)  # Postgres is down, or a row that it needs is locked
            raise
        except Exception:
            log.exception("the runs of a schedule cannot be made schedule_id=%s", schedule_id)
            self._set_aside(schedule_id, FAILED_SECONDS)

    def _insert(self, schedule_ids: Sequence[str]) -> None:
        with transaction(self._sessions) as session:
            made = insert_due_runs(session, schedule_ids)
        for schedule_id in schedule_ids:
            if schedule_id not in made:
                self._set_aside(schedule_id, BUSY_SECONDS)

    def _set_aside(self, schedule_id: str, seconds: float) -> None:
        self._aside[schedule_id] = self._monotonic() + seconds


def next_in_turn(queue: TurnQueue[DueSchedule], due: Iterable[DueSchedule]) -> list[DueSchedule]:
    """Return up to AT_ONCE of the due schedules, round robin between tenants."""
    queue.renew((each.tenant_id, each) for each in due)
    chosen: list[DueSchedule] = []
    while queue and len(chosen) < AT_ONCE:
        chosen += [queue.take(place) for place in islice(list(queue.firsts()), AT_ONCE - len(chosen))]
    return chosen
