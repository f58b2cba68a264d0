"""Work under a claim, which a thread renews as long as the work makes progress.

The work is a series of short transactions, each under the claim; requests to the object store run between them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Generic, TypeVar

from sqlalchemy.orm import Session, sessionmaker

from jobs.claims.claims import Claim, Claims, Row
from jobs.database import transaction
from jobs.errors import FencedOutError, ServiceError, TokenmillError
from jobs.settings import Settings
from jobs.states import CANCELLING

log = logging.getLogger(__name__)

_STALL = 12
"""Number of storage timeouts without progress after which a worker counts as stuck and its claim is no longer renewed.
A single request to the store ends sooner."""

_LOOK_SECONDS = 1.0
"""Longest interval between renewals where a cancel is detected by renewing: it is noticed within 2 s."""

T = TypeVar("T")


class StoppingError(TokenmillError):
    """This worker is stopping: the row is released as it is, and another worker continues."""


class CancelHeardError(TokenmillError):
    """The row was cancelled during the work: the current step is dropped, and can be repeated."""


class ClaimedWork(Generic[Row]):
    """Work under one claim. Each method that needs the claim raises FencedOutError where it has ended."""

    def __init__(
        self,
        maker: sessionmaker[Session],
        claims: Claims[Row],
        claim: Claim,
        *,
        settings: Settings,
        hold_sessions: sessionmaker[Session] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        hears_cancel: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hold_sessions` opens separate connections for renewals, which must not wait for the work's.

        `is_stopping` is polled between steps, and occasionally within one. With `hears_cancel` the work is interrupted,
        once, when its row becomes cancelling.
        """
        self.claim = claim
        self._maker = maker
        self._claims = claims
        self._settings = settings
        self._hold_sessions = hold_sessions or maker
        self._is_stopping = is_stopping
        self._monotonic = monotonic
        self._moved_at = monotonic()
        self._is_lost = False
        self.is_released = False
        """Whether a transaction of the work has released the row, with its last effect."""
        self._hears_cancel = hears_cancel and claim.state != CANCELLING
        self._is_cancelled = False

    def check(self) -> None:
        """Record progress and raise where the work must stop; makes no database call.

        Raises FencedOutError where the claim was found to have ended, StoppingError where this worker is stopping, and
        CancelHeardError once where the row was cancelled: each step can be repeated.
        """
        self._moved_at = self._monotonic()
        if self._is_lost:
            raise self._claims.over(self.claim)
        if self._is_stopping():
            raise StoppingError(f"{self._claims.kind} {self.claim.id} is released: this worker is stopping")
        if self._is_cancelled and self._hears_cancel:
            self._hears_cancel = False  # the renewing thread may set it once more
            raise CancelHeardError(f"{self._claims.kind} {self.claim.id} was cancelled")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a short transaction without locking the row."""
        self.check()
        with transaction(self._maker) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[tuple[Session, Row]]:
        """Open a short transaction with the row, freshly read, locked and still claimed; it may release the row."""
        with self.reading() as session:
            row = self._claims.lock(session, self.claim)
            yield session, row
            is_released = not self._claims.is_held(row, self.claim)
        self.is_released = is_released

    def confirm(self) -> None:
        """Check in the database that the claim holds: before an effect that no transaction can undo."""
        with self.reading() as session:
            self._claims.confirm(session, self.claim)

    def put_off(self, pause: timedelta) -> None:
        """Release the row, but let nobody claim it until `pause` is over."""
        with self.reading() as session:
            self._claims.put_off(session, self.claim, pause=pause)

    def checked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield pieces of an object while the claim holds."""
        for piece in pieces:
            self.check()
            yield piece

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the claim in a thread until the block ends: a store request may take longer than a claim lasts.

        With renewal between pieces alone, two workers would take the row from each other and neither would finish.
        """
        is_over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(is_over,), name=f"claim {self.claim.id}", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            is_over.set()
            keeper.join()

    def _keep(self, is_over: threading.Event) -> None:
        seconds = self._settings.heartbeat_seconds
        if self._hears_cancel:
            seconds = min(seconds, _LOOK_SECONDS)
        while not self._is_lost and not is_over.wait(seconds):
            if self._monotonic() - self._moved_at > _STALL * self._settings.storage_timeout_seconds:
                continue
            try:
                with transaction(self._hold_sessions) as session:
                    state = self._claims.renew(session, self.claim, lease=self._settings.lease)
                self._is_cancelled = state == CANCELLING
            except FencedOutError:
                self._is_lost = True
            except ServiceError as error:
                log.warning("claim was not renewed of=%s error=%s", self.claim.id, error)
            except Exception:
                log.exception("claim was not renewed of=%s", self.claim.id)


def work_on(
    maker: sessionmaker[Session],
    claims: Claims[Row],
    row_id: str,
    work: Callable[[ClaimedWork[Row]], T | None],
    *,
    settings: Settings,
    hold_sessions: sessionmaker[Session] | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
    hears_cancel: bool = False,
) -> T | None:
    """Claim a row, do `work` on it and release it; the other parameters are those of `ClaimedWork`.

    Returns None where another worker has the row or takes it meanwhile, or this one is stopping. Errors of `work`
    propagate.
    """
    if is_stopping():
        return None
    with transaction(maker) as session:
        claim = claims.claim(session, row_id, lease=settings.lease)
    if claim is None:
        return None
    mine = ClaimedWork(
        maker,
        claims,
        claim,
        settings=settings,
        hold_sessions=hold_sessions,
        is_stopping=is_stopping,
        hears_cancel=hears_cancel,
    )
    done: T | None = None
    try:
        with mine.renewed():
            done = work(mine)
    except FencedOutError as error:
        log.info("claim ended early of=%s reason=%s", row_id, error)
        return None
    except StoppingError:
        pass
    except Exception:
        _give_up(maker, claims, claim)
        raise
    if not mine.is_released:
        _give_up(maker, claims, claim)
    return done


def _give_up(maker: sessionmaker[Session], claims: Claims[Row], claim: Claim) -> None:
    with suppress(ServiceError), transaction(maker) as session:  # otherwise it expires
        claims.give_up(session, claim)
