"""Work that one worker does under a claim, which a thread renews while the work moves. Knows no table.

Such work is a row of short transactions, each under the claim; the object store is asked between them.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.errors import FencedOutError, ServiceError
from jobs.settings import Settings

log = logging.getLogger(__name__)

_STALL = 12
"""Silences of the store after which a worker that has not moved is taken for wedged: its claim is renewed no more. A
request to the store ends before."""


class ClaimedWork(ABC):
    """What is done under one claim. Each method that needs the claim raises FencedOutError where it is over."""

    def __init__(
        self,
        maker: sessionmaker[Session],
        subject: str,
        *,
        hold_sessions: sessionmaker[Session],
        settings: Settings,
        monotonic: Callable[[], float],
    ) -> None:
        self._maker = maker
        self._subject = subject
        self._hold_sessions = hold_sessions
        self._settings = settings
        self._monotonic = monotonic
        self._moved_at = monotonic()
        self._is_lost = False

    @abstractmethod
    def renew(self, session: Session) -> None:
        """Let the claim last for another lease. Raises FencedOutError."""

    @abstractmethod
    def over(self) -> FencedOutError:
        """Return what says that the claim is over."""

    def check(self) -> None:
        """Note that the work moves, and look whether its claim was seen to be over; asks no database."""
        self._moved_at = self._monotonic()
        if self._is_lost:
            raise self.over()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a short transaction that writes nothing."""
        self.check()
        with transaction(self._maker) as session:
            yield session

    def checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield pieces of an object, as long as the claim lasts."""
        for piece in pieces:
            self.check()
            yield piece

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the claim in a thread until the block ends: the store may take longer over a piece than a claim lasts.

        Renewed between pieces alone, two workers would take turns at it and neither would get through.
        """
        is_over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(is_over,), name=f"claim {self._subject}", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            is_over.set()
            keeper.join()

    def _keep(self, is_over: threading.Event) -> None:
        while not self._is_lost and not is_over.wait(self._settings.heartbeat_seconds):
            if self._monotonic() - self._moved_at > _STALL * self._settings.storage_timeout_seconds:
                continue
            try:
                with transaction(self._hold_sessions) as session:
                    self.renew(session)
            except FencedOutError:
                self._is_lost = True
            except ServiceError as error:
                log.warning("claim was not renewed of=%s error=%s", self._subject, error)
            except Exception:
                log.exception("claim was not renewed of=%s", self._subject)
