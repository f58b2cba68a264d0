"""Looks for work that is due and lets some go on at once, one of each tenant: a store that hangs is its tenant's.

Knows not what it is: runs of pipelines, or extractions.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from jobs.errors import ServiceError
from jobs.graphs.due import Due

log = logging.getLogger(__name__)

MAX_AT_ONCE = 4
"""Of a kind, in one control worker."""


class TenantTurns:
    """One thread looks, when woken and now and then; others go on with what it finds."""

    def __init__(
        self, kind: str, *, find: Callable[[], Sequence[Due]], advance: Callable[[str], bool], look_seconds: float
    ) -> None:
        """`advance` returns False where another worker is at it; `kind` names the work in logs."""
        self._kind = kind
        self._find = find
        self._advance = advance
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._under_way: dict[str, str] = {}  # by tenant: what goes on here
        self._numbers = count(1)
        self._served: dict[str, int] = {}  # by tenant: when something of it went on last
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix=kind)
        self._thread = threading.Thread(target=self._keep_looking, name=f"look for {kind}s", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def wake(self) -> None:
        """Let it look at once."""
        self._wake.set()

    def stop(self) -> None:
        """Take up no more, and wait for what goes on: it is given up between two of its effects."""
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
                log.warning("looking for work failed kind=%s error=%s", self._kind, error)
            except Exception:
                log.exception("looking for work failed kind=%s", self._kind)  # the thread must live on
            self._wake.wait(self._look_seconds * random.uniform(0.5, 1.0))

    def look(self) -> None:
        """Go on with what is due, of the tenants that were served least recently."""
        for due in sorted(self._find(), key=lambda each: self._served.get(each.tenant_id, 0)):
            if self._stop.is_set() or not self._open(due):
                continue
            self._served[due.tenant_id] = next(self._numbers)
            self._executor.submit(self._go_on, due)

    def _open(self, due: Due) -> bool:
        with self._lock:
            if due.tenant_id in self._under_way or len(self._under_way) >= MAX_AT_ONCE:
                return False
            self._under_way[due.tenant_id] = due.id
            return True

    def _go_on(self, due: Due) -> None:
        has_moved = False
        try:
            has_moved = self._advance(due.id)
        except ServiceError as error:
            log.warning("turn waits kind=%s id=%s error=%s", self._kind, due.id, error)
        except Exception:
            log.exception("turn failed kind=%s id=%s", self._kind, due.id)
        finally:
            with self._lock:
                del self._under_way[due.tenant_id]
            if has_moved:
                self._wake.set()
