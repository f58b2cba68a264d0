"""Ends what is kept no longer, now and then. Knows of each kind only who ends it, and how often."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sqlalchemy.orm import Session, sessionmaker

from jobs import chores, decisions
from jobs.accounts import browser_sessions
from jobs.batches import exact_counts
from jobs.batches.deletion import delete_left
from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.extractions.deletion import purge_documents, purge_extractions
from jobs.indexes.purging import purge_indexes, sweep_index_objects
from jobs.pipelines.runs.purging import purge_runs
from jobs.retention import history
from jobs.retention.purging import drop_days, purge_files, purge_results, purge_uploads, sweep_objects
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.webhooks import deliveries

log = logging.getLogger(__name__)

_PURGE_SECONDS = 60.0
_SWEEP_AGAIN = timedelta(hours=6)
_LOOK_AGAIN = timedelta(hours=1)
_HOLD = timedelta(hours=1)
"""After how long a chore that a worker began is begun by another, or again by this one where it failed."""

Step = Callable[[], int]
"""Ends things; returns how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chore:
    """A step that lists the whole store, or looks at all that is kept: not each time, and one worker for all."""

    name: str
    """As `jobs.chores` has it."""
    step: Step
    again: timedelta = _LOOK_AGAIN


class Purge:
    """What a control worker ends, beside its batches."""

    def __init__(self, sessions: sessionmaker[Session], storage: Storage, settings: Settings) -> None:
        self._sessions = sessions
        self._storage = storage
        self._settings = settings

    def keep_on(self, stop: threading.Event) -> None:
        """Purge now and then, until `stop` is set."""
        while not stop.wait(_PURGE_SECONDS):
            self.run()

    def run(self) -> None:
        """Purge once, step by step; one that fails is tried again the next time."""
        for what, step in self._steps().items():
            self._try(what, step)
        for what, chore in self._chores().items():
            self._try(what, partial(self._in_turn, chore))

    def _steps(self) -> dict[str, Step]:
        """Return what every worker does each time, by what it ends."""
        maker, storage = self._sessions, self._storage
        retention = timedelta(days=self._settings.retention_days)
        return {
            "tenants": lambda: delete_left(maker),
            "result days": lambda: len(drop_days(maker, retention=retention)),
            "results": lambda: purge_results(maker, retention=retention),
            "files": lambda: purge_files(maker, storage),
            "uploads": lambda: purge_uploads(maker, storage),
            "documents": lambda: purge_documents(maker, storage),
            "indexes": lambda: purge_indexes(maker, storage),
            "sessions": self._forget_sessions,
        }

    def _chores(self) -> dict[str, _Chore]:
        maker = self._sessions
        detail = timedelta(days=self._settings.detail_days)
        run_age = timedelta(days=self._settings.run_days)
        return {
            "leftovers": _Chore(name="sweep", step=self._sweep, again=_SWEEP_AGAIN),
            "old batches": _Chore(name="roll up", step=lambda: history.roll_up(maker, age=detail)),
            "old runs": _Chore(name="forget runs", step=lambda: purge_runs(maker, age=run_age)),
            "old extractions": _Chore(name="forget extractions", step=lambda: purge_extractions(maker, age=run_age)),
            "decisions": _Chore(name="forget decisions", step=lambda: decisions.forget(maker)),
            "webhooks": _Chore(name="forget webhooks", step=lambda: deliveries.forget(maker)),
            "input counts": _Chore(name="forget input counts", step=self._forget_counts),
            "workers": _Chore(name="forget workers", step=lambda: history.forget_workers(maker)),
        }

    def _sweep(self) -> int:
        age = timedelta(hours=self._settings.leftover_hours)
        unused = timedelta(days=self._settings.document_days)
        num_swept = sweep_objects(self._sessions, self._storage, age=age, unused=unused)
        return num_swept + sweep_index_objects(self._sessions, self._storage, age=age)

    def _forget_counts(self) -> int:
        with transaction(self._sessions) as session:
            return exact_counts.forget(session)

    def _forget_sessions(self) -> int:
        with transaction(self._sessions) as session:
            return browser_sessions.forget_ended(session)

    def _in_turn(self, chore: _Chore) -> int:
        """Do a chore where it is due, and no other control worker has begun it."""
        with transaction(self._sessions) as session:
            if not chores.claim(session, chore.name, hold=_HOLD):
                return 0
        num = chore.step()
        with transaction(self._sessions) as session:
            chores.finish(session, chore.name, again=chore.again)
        return num

    def _try(self, what: str, step: Step) -> None:
        try:
            num_purged = step()
        except ServiceError as error:
            log.warning("purging failed what=%s error=%s", what, error)
        except Exception:
            log.exception("purging failed what=%s", what)
        else:
            if num_purged:
                log.info("purged what=%s number=%d", what, num_purged)
