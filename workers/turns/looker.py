"""A thread that looks for work that is due, when woken and now and then, and threads that do what it finds.

Knows not what it is, and not whose turn it is.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import KeptSession
from jobs.errors import ServiceError

log = logging.getLogger(__name__)


class Looker:
    """`look` is called in one thread alone; what it begins goes on in others."""

    def __init__(
        self,
        kind: str,
        look: Callable[[Session], None],
        *,
        sessions: sessionmaker[Session],
        look_seconds: float,
        num_threads: int,
    ) -> None:
        """`kind` names the work in logs. The session of a `look` is a `KeptSession`'s: each statement is alone."""
        self._kind = kind
        self._look = look
        self._looks = KeptSession(sessions)
        self._look_seconds = look_seconds
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=kind)
        self._thread = threading.Thread(target=self._keep_looking, name=f"look for {kind}", daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    def stop(self) -> None:
        """Take up no more, and wait for what goes on."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._executor.shutdown()

    def begin(self, what: str, do: Callable[[], bool], *, then: Callable[[bool], None]) -> None:
        """Do something in a thread, then tell what it returned: False where it failed."""
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
            self._wake.clear()  # before looking: what comes meanwhile is looked for again
            try:
                self._looks.ask(self._look)
            except ServiceError as error:
                log.warning("looking for work failed kind=%s error=%s", self._kind, error)
            except Exception:
                log.exception("looking for work failed kind=%s", self._kind)  # the thread must live on: no other looks
            self._wake.wait(self._look_seconds * random.uniform(0.5, 1.0))
        self._looks.close()
