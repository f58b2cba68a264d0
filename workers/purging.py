"""Periodic deletion of expired data: the queue's own, and what features declare as `purges`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial

from sqlalchemy.orm import Session, sessionmaker

from features import parts
from jobs import chores, decisions
from jobs.accounts import browser_sessions, spill_days
from jobs.batches import exact_counts
from jobs.batches.deletion import delete_left
from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.purges import SWEEP_AGAIN, Purge
from jobs.retention import history
from jobs.retention.purging import drop_days, purge_files, purge_results, purge_uploads, sweep_objects
from jobs.settings import Settings
from jobs.storage import Storage

log = logging.getLogger(__name__)

_PURGE_SECONDS = 60.0
_HOLD = timedelta(hours=1)
"""Time after which a chore that was started but not finished is started again, by this worker or another."""


class Purging:
    """The purges of a control worker."""

    def __init__(self, sessions: sessionmaker[Session], storage: Storage, settings: Settings) -> None:
        self._sessions = sessions
        self._storage = storage
        self._settings = settings

    def keep_on(self, stop: threading.Event) -> None:
        """Purge periodically until `stop` is set."""
        while not stop.wait(_PURGE_SECONDS):
            self.run()

    def run(self) -> None:
        """Run each purge once; one that fails is retried the next time."""
        for purge in (*self._own(), *self._of_features()):
            self._try(purge.what, purge.step if purge.chore is None else partial(self._in_turn, purge.chore, purge))

    def _of_features(self) -> Iterator[Purge]:
        """Yield the purges of features; an error in one feature does not stop the others."""
        for purges in parts("purges"):
            try:
                yield from purges(self._sessions, self._storage, self._settings)
            except Exception:
                log.exception("purging failed what=%s", purges.__module__)

    def _own(self) -> Sequence[Purge]:
        maker, storage, settings = self._sessions, self._storage, self._settings
        retention, detail = timedelta(days=settings.retention_days), timedelta(days=settings.detail_days)
        return (
            Purge(what="tenants", step=lambda: delete_left(maker)),
            Purge(what="result days", step=lambda: len(drop_days(maker, retention=retention))),
            Purge(what="results", step=lambda: purge_results(maker, retention=retention)),
            Purge(what="files", step=lambda: purge_files(maker, storage)),
            Purge(what="uploads", step=lambda: purge_uploads(maker, storage)),
            Purge(what="sessions", step=self._forget_sessions),
            Purge(what="leftovers", chore="sweep", step=self._sweep, again=SWEEP_AGAIN),
            Purge(what="old batches", chore="roll up", step=lambda: history.roll_up(maker, age=detail)),
            Purge(what="decisions", chore="forget decisions", step=lambda: decisions.forget(maker)),
            Purge(what="input counts", chore="forget input counts", step=self._forget_counts),
            Purge(what="spill days", chore="forget spill days", step=self._forget_spill_days),
            Purge(what="workers", chore="forget workers", step=lambda: history.forget_workers(maker)),
        )

    def _sweep(self) -> int:
        age = timedelta(hours=self._settings.leftover_hours)
        unused = timedelta(days=self._settings.document_days)
        return sweep_objects(self._sessions, self._storage, age=age, unused=unused)

    def _forget_counts(self) -> int:
        with transaction(self._sessions) as session:
            return exact_counts.forget(session)

    def _forget_spill_days(self) -> int:
        with transaction(self._sessions) as session:
            return spill_days.forget(session)

    def _forget_sessions(self) -> int:
        with transaction(self._sessions) as session:
            return browser_sessions.forget_ended(session)

    def _in_turn(self, chore: str, purge: Purge) -> int:
        """Run a purge if its chore is due and no other control worker has started it."""
        with transaction(self._sessions) as session:
            if not chores.claim(session, chore, hold=_HOLD):
                return 0
        num = purge.step()
        with transaction(self._sessions) as session:
            chores.finish(session, chore, again=purge.again)
        return num

    def _try(self, what: str, step: Callable[[], int]) -> None:
        try:
            num_purged = step()
        except ServiceError as error:
            log.warning("purging failed what=%s error=%s", what, error)
        except Exception:
            log.exception("purging failed what=%s", what)
        else:
            if num_purged:
                log.info("purged what=%s number=%d", what, num_purged)
