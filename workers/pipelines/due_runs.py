"""Looks for runs that are due and lets some go on at once, one of each tenant: a store that hangs is its tenant's."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.pipelines import claims, lifecycle
from jobs.pipelines.claims import DueRun

log = logging.getLogger(__name__)

MAX_RUNS = 4
"""That one control worker advances at once."""


class DueRuns:
    """One thread looks, when woken and now and then; others advance runs."""

    def __init__(self, sessions: sessionmaker[Session], *, advance: Callable[[str], bool], look_seconds: float) -> None:
        self._sessions = sessions
        self._advance = advance
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._under_way: dict[str, str] = {}  # by tenant: the run that goes on here
        self._numbers = count(1)
        self._served: dict[str, int] = {}  # by tenant: when one of its runs went on last
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(MAX_RUNS, thread_name_prefix="run")
        self._thread = threading.Thread(target=self._keep_looking, name="look for runs", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Take up no more, and wait for what goes on: a run is given up between two of its effects."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._executor.shutdown()

    def _keep_looking(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()  # before looking: what comes meanwhile is looked for again
            try:
                self.look()
            except ServiceError as error:
                log.warning("looking for runs failed error=%s", error)
            except Exception:
                log.exception("looking for runs failed")  # the thread must live on
            self._wake.wait(self._look_seconds * random.uniform(0.5, 1.0))

    def look(self) -> None:
        """Begin queued runs, and go on with those that are due, of the tenants that were served least recently."""
        with transaction(self._sessions) as session:
            lifecycle.start_queued(session)
        with transaction(self._sessions) as session:
            due = claims.due_runs(session)
        for run in sorted(due, key=lambda each: self._served.get(each.tenant_id, 0)):
            if self._stop.is_set() or not self._open(run):
                continue
            self._served[run.tenant_id] = next(self._numbers)
            self._executor.submit(self._go_on, run)

    def _open(self, run: DueRun) -> bool:
        with self._lock:
            if run.tenant_id in self._under_way or len(self._under_way) >= MAX_RUNS:
                return False
            self._under_way[run.tenant_id] = run.run_id
            return True

    def _go_on(self, run: DueRun) -> None:
        has_moved = False
        try:
            has_moved = self._advance(run.run_id)
        except ServiceError as error:
            log.warning("run waits run_id=%s error=%s", run.run_id, error)
        except Exception:
            log.exception("run failed to go on run_id=%s", run.run_id)
        finally:
            with self._lock:
                del self._under_way[run.tenant_id]
            if has_moved:
                self._wake.set()
