"""Work that one worker does under a claim, which a thread renews while the work moves.

Such work is a row of short transactions, each under the claim; the object store is asked between them.
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
"""Silences of the store after which a worker that has not moved is taken for wedged: its claim is renewed no more. A
request to the store ends before."""

_LOOK_SECONDS = 1.0
"""How often a claim is renewed, at least, by who hears a cancel that way: within 2 s."""

T = TypeVar("T")


class StoppingError(TokenmillError):
    """This worker is to end: the row is given up as it is, and another worker goes on with it."""


class CancelHeardError(TokenmillError):
    """The row was cancelled while this worker was at it: what is under way is dropped, and can be done again."""


class ClaimedWork(Generic[Row]):
    """What is done under one claim. Each method that needs the claim raises FencedOutError where it is over."""

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
        """With `hold_sessions`, on connections of their own, the claim is renewed however long the work waits for one.

        `is_stopping` is asked between effects, and now and then within one. What `hears_cancel` is interrupted, once,
        where its row becomes cancelling.
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
        self._hears_cancel = hears_cancel and claim.state != CANCELLING
        self._is_cancelled = False

    def check(self) -> None:
        """Note that the work moves, and look whether its claim was seen to be over; asks no database.

        Raises StoppingError where this worker is to end, CancelHeardError once where the row was cancelled: each
        effect can be done again.
        """
        self._moved_at = self._monotonic()
        if self._is_lost:
            raise self._claims.over(self.claim)
        if self._is_stopping():
            raise StoppingError(f"{self._claims.kind} {self.claim.id} is given up: this worker is to end")
        if self._is_cancelled and self._hears_cancel:
            self._hears_cancel = False  # the thread that renews may note it once more
            raise CancelHeardError(f"{self._claims.kind} {self.claim.id} was cancelled")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a short transaction without the row."""
        self.check()
        with transaction(self._maker) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[tuple[Session, Row]]:
        """Open a short transaction with the row, fresh, locked and still claimed."""
        with self.reading() as session:
            yield session, self._claims.lock(session, self.claim)

    def confirm(self) -> None:
        """Ask the database whether the claim holds: before what no transaction can take back."""
        with self.reading() as session:
            self._claims.confirm(session, self.claim)

    def put_off(self, pause: timedelta) -> None:
        """Give the row up, to be taken by nobody before `pause` is over."""
        with self.reading() as session:
            self._claims.put_off(session, self.claim, pause=pause)

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
    """Claim a row, do `work` on it and give it up; the rest as for `ClaimedWork`.

    None where another worker has the row, or gets it meanwhile, or this one is to end. What `work` raises is raised.
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
    _give_up(maker, claims, claim)
    return done


def _give_up(maker: sessionmaker[Session], claims: Claims[Row], claim: Claim) -> None:
    with suppress(ServiceError), transaction(maker) as session:  # else it ends by itself
        claims.give_up(session, claim)
