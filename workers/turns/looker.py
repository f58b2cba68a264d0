"""A thread that polls for due work, periodically and when woken, and threads that run it."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import KeptSession
from jobs.errors import ServiceError

log = logging.getLogger(__name__)


class Looker:
    """Polls for work: `look` is called in a single thread; the work that it begins runs in others."""

    def __init__(
        self,
        kind: str,
        look: Callable[[Session], None],
        *,
        sessions: sessionmaker[Session],
        look_seconds: float,
        num_threads: int,
    ) -> None:
        """`kind` names the work in logs. `look` gets the session of a `KeptSession`: each statement autocommits."""
        self._kind = kind
        self._look = look
        self._looks = KeptSession(sessions)
        self._look_seconds = look_seconds
        self._within = math.inf
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=kind)
        self._thread = threading.Thread(target=self._keep_looking, name=f"look for {kind}", daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def wake(self) -> None:
        """Poll now."""
        self._wake.set()

    def look_within(self, seconds: float) -> None:
        """Poll after this time at the latest; called by `look`."""
        self._within = max(0.0, seconds)

    def stop(self) -> None:
        """Start nothing more, and wait for what is in progress."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._executor.shutdown()

    def begin(self, what: str, do: Callable[[], bool], *, then: Callable[[bool], None]) -> None:
        """Run `do` in a thread, then call `then` with its result, or with False if it failed."""
        self._executor.submit(self._do, what, do, then)

    def _do(self, what: str, do: Callable[[], bool], then: Callable[[bool], None]) -> None:
        is_done = False
        try:
            is_done = do()
        except ServiceError as error:
            log.warning("due work waits kind=%s of=%s error=%s", self._kind, what, error)
        except Exception:
            log.exception("due work failed kind=%s of=%s", self._kind, what)
        finally:
            then(is_done)

    def _keep_looking(self) -> None:
        while not self._stop.is_set():
            self._within = math.inf
            self._wake.clear()  # before polling, so that work that arrives meanwhile is polled for again
            try:
                self._looks.ask(self._look)
            except ServiceError as error:
                log.warning("looking for work failed kind=%s error=%s", self._kind, error)
            except Exception:
                log.exception("looking for work failed kind=%s", self._kind)  # the thread must survive: no other polls
            self._wake.wait(min(self._look_seconds * random.uniform(0.5, 1.0), self._within))
        self._looks.close()
