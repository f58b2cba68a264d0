"""What the lines of one chunk may cost at a server outside the house, and what it was paid for them.

Each request is reserved before it is sent, a repeated one again, and settled with the flush of its line.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Protocol

from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import spill_days
from jobs.accounts.spill_days import NOTHING_SPENT, Asker, Reserved, Spent
from jobs.chunks.leasing import ClaimedChunk
from jobs.database import transaction
from jobs.engines.engine import Spill
from jobs.errors import ServiceError
from workers.remote.calls.call import Permit
from workers.remote.calls.caller import Caller
from workers.remote.calls.outcomes import Outcome
from workers.remote.verdicts import Answered, Counts


class Asked(Protocol):
    """A line, and the most tokens that a server may count for one answer to it."""

    @property
    def line_no(self) -> int: ...
    @property
    def most_read_tokens(self) -> int: ...
    @property
    def most_output_tokens(self) -> int: ...


class Spending:
    """Of a server of the house: it costs nothing here, and every line may be asked."""

    def reserve(self, lines: Sequence[Asked]) -> Sequence[bool]:
        """Return for each line whether it may be asked now. Raise ServiceError."""
        return [True] * len(lines)

    def permit(self, line: Asked) -> Permit | None:
        """Return what to ask before each request of a line that was reserved; None: nothing."""
        return None

    def settle(self, line: Asked, outcome: Outcome) -> None:
        """Note what a line that has ended has cost."""

    def drop(self, caller: Caller, keys: Mapping[int, object]) -> None:
        """Drop the calls of lines, by number."""
        caller.cancel(keys.values())

    def pop(self) -> Spent:
        """Return what was paid, and what was reserved in vain, since the last call."""
        return NOTHING_SPENT

    @property
    def is_any(self) -> bool:
        """Tell whether `pop` would return anything."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reservation:
    day: date
    picos: int


class SpillSpending(Spending):
    """Of a server outside the house: threads of the caller reserve, too, for lines that the chunk's thread may drop.

    The lock is held while the database reserves, so that no reservation is added to a line that has been dropped.
    """

    def __init__(self, claim: ClaimedChunk, spill: Spill, sessions: sessionmaker[Session]) -> None:
        self._asker = Asker(model=claim.model, batch_id=claim.batch_id, chunk_id=claim.chunk_id, fence=claim.fence)
        self._spill = spill
        self._sessions = sessions
        self._lock = threading.Lock()
        self._is_dropped = False
        self._reserved: dict[int, list[_Reservation]] = {}  # of lines that have not ended, by number
        self._paid_picos = 0
        self._unused: Counter[date] = Counter()

    def reserve(self, lines: Sequence[Asked]) -> Sequence[bool]:
        costs = [self._most(line) for line in lines]
        with self._lock:
            reserved = self._reserve(costs)
            for line, picos, has_room in zip(lines, costs, reserved.fits, strict=True):
                if has_room:
                    self._reserved.setdefault(line.line_no, []).append(_Reservation(day=reserved.day, picos=picos))
        return reserved.fits

    def _reserve(self, costs: Sequence[int]) -> Reserved:
        with transaction(self._sessions) as session:
            return spill_days.reserve(session, self._asker, costs, budget_picos=self._spill.budget_picos)

    def permit(self, line: Asked) -> Permit:
        return Permit(may_send=partial(self._may_send, line), may_repeat=partial(self._may_repeat, line))

    def _may_send(self, line: Asked) -> bool:
        """Return whether a reserved line may be sent: on a new day only if its budget has room, too."""
        reserved = self._reserved.get(line.line_no, [])
        return bool(reserved) and (reserved[-1].day == _today() or self._add(line, renews=True))

    def _may_repeat(self, line: Asked) -> bool:
        """Return whether a line whose answer was thrown away may be asked again: that is paid anew."""
        return self._add(line, renews=False)

    def _add(self, line: Asked, *, renews: bool) -> bool:
        """Reserve a line once more, unless it has ended or was dropped; what that `renews` was unused, and returns."""
        with self._lock:
            if self._is_dropped or line.line_no not in self._reserved:
                return False
            try:
                today = self._reserve([self._most(line)])
            except ServiceError:
                return False
            if today.fits[0]:
                reserved = self._reserved[line.line_no]
                if renews:
                    self._return([reserved.pop()])
                reserved.append(_Reservation(day=today.day, picos=self._most(line)))
            return today.fits[0]

    def settle(self, line: Asked, outcome: Outcome) -> None:
        with self._lock:
            reserved = self._reserved.pop(line.line_no, [])
            paid = self._paid(line, outcome, reserved_picos=sum(one.picos for one in reserved))
            self._paid_picos += paid
            # The payments count on the last days: what was reserved on an earlier one is of no use any more. What is
            # above all reservations counts on the last one.
            for one in reversed(reserved):
                self._unused[one.day] += max(0, one.picos - paid)
                paid = max(0, paid - one.picos)
            if paid:
                self._unused[reserved[-1].day if reserved else _today()] -= paid

    def drop(self, caller: Caller, keys: Mapping[int, object]) -> None:
        free = caller.withdraw(keys.values())
        with self._lock:
            self._is_dropped = True
            for line_no in [line_no for line_no, key in keys.items() if key in free]:
                self._return(self._reserved.pop(line_no, []))

    def _return(self, reserved: Sequence[_Reservation]) -> None:
        for one in reserved:
            self._unused[one.day] += one.picos

    def pop(self) -> Spent:
        with self._lock:
            spent = Spent(picos=self._paid_picos, unused=dict(self._unused))
            self._paid_picos, self._unused = 0, Counter()
        return spent

    @property
    def is_any(self) -> bool:
        with self._lock:
            return bool(self._paid_picos or any(self._unused.values()))

    def _most(self, line: Asked) -> int:
        prices = self._spill.prices
        return prices.cost_picos(input_tokens=line.most_read_tokens, output_tokens=line.most_output_tokens)

    def _paid(self, line: Asked, outcome: Outcome, *, reserved_picos: int) -> int:
        """Return what a line has cost: the most where the server gave no count that can be true, and more where it
        counted more, as its vendor may charge that."""
        counted, num_uncounted, excesses = list(outcome.wasted), outcome.num_uncounted, list(outcome.excesses)
        if isinstance(outcome.verdict, Answered):
            counted += [] if outcome.verdict.counts is None else [outcome.verdict.counts]
            num_uncounted += outcome.verdict.counts is None
            excesses += [] if outcome.verdict.excess is None else [outcome.verdict.excess]
        most, known = self._most(line), sum(map(self._cost, counted))
        paid = max(known, min(known + most * num_uncounted, reserved_picos))
        return paid + sum(max(0, self._cost(excess) - most) for excess in excesses)

    def _cost(self, counts: Counts) -> int:
        return self._spill.prices.cost_picos(input_tokens=counts.prompt_tokens, output_tokens=counts.completion_tokens)


def _today() -> date:
    return datetime.now(UTC).date()
