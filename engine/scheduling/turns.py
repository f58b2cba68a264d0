"""Turns between tenants: the tenant that was served the least for its weight is next.

The order within a tenant is the policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace

import numpy as np

from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.seat_table import SeatTable
from engine.scheduling.waiting import Key, KeyedQueue


class TenantTurns:
    """Waiting sequences of several tenants, and the service that each tenant has received.

    A tenant is charged for the prompt tokens not found in the cache when its request first starts, so that a burst of
    starts is spread too, for its output tokens as they come, and for the time that its grammars take, as the tokens
    that could be computed in it, each divided by its weight; recomputation after a preemption is not charged. A tenant
    that returns after a pause is counted as if it had been served as much as the last one that was picked: idle time
    earns nothing.
    """

    def __init__(self, key: Callable[[Sequence], Key]) -> None:
        """`key` orders the waiting sequences of one tenant, smallest first."""
        self._key = key
        self._queues: dict[str, KeyedQueue] = {}
        self._tenants: list[tuple[float, str]] = []
        self._served: dict[str, float] = {}
        self._floor = 0.0
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def served(self, tenant: str) -> float:
        """Return a tenant's service so far: tokens divided by weight."""
        return self._served.get(tenant, self._floor)

    def push(self, sequence: Sequence) -> None:
        """Add a waiting sequence."""
        tenant = sequence.request.tenant
        if tenant not in self._queues:
            self._queues[tenant] = KeyedQueue()
            self._served[tenant] = max(self.served(tenant), self._floor)
            heappush(self._tenants, (self._served[tenant], tenant))
        self._num_waiting += 1
        self._queues[tenant].push(self._key(sequence), sequence)

    def peek(self) -> Sequence:
        """Return the best sequence of the tenant whose turn it is; at least one waits."""
        while True:
            served, tenant = self._tenants[0]
            if not self._queues[tenant]:
                heappop(self._tenants)
                del self._queues[tenant]
            elif served < self._served[tenant]:
                # Service only grows, so a stale entry comes up too early and never too late.
                heapreplace(self._tenants, (self._served[tenant], tenant))
            else:
                self._floor = max(self._floor, served)
                return self._queues[tenant].peek()

    def discard(self, sequence: Sequence) -> None:
        """Remove a waiting sequence."""
        self._num_waiting -= 1
        self._queues[sequence.request.tenant].discard(sequence)

    def charge_start(self, sequence: Sequence) -> None:
        """Charge the prompt of a sequence that starts."""
        if not sequence.num_preemptions:
            self.charge_time(sequence, sequence.num_prompt_tokens - sequence.num_cached_tokens)
            sequence.num_charged_tokens = sequence.num_tokens

    def charge(self, tenant: str, tokens_by_weight: float) -> None:
        """Charge tokens, divided by the tenant's weight."""
        self._served[tenant] = self.served(tenant) + tokens_by_weight

    def charge_time(self, sequence: Sequence, num_tokens: float) -> None:
        """Charge time that a sequence took for itself, as the tokens that could be computed in it."""
        request = sequence.request
        self.charge(request.tenant, num_tokens / request.weight)


@dataclass(frozen=True, slots=True)
class Account:
    """Sequences whose tokens are charged together."""

    priority: int
    tenant: str
    weight: float


class Accounts:
    """Sum a step's tokens by account, for all sequences at once.

    Seated sequences have the number of their account; a number is used again once none has it.
    """

    def __init__(self) -> None:
        self._accounts: list[Account] = []
        self._number_of: dict[Account, int] = {}
        self._num_seats: list[int] = []
        self._free_numbers: list[int] = []

    def take(self, sequence: Sequence) -> None:
        """Give a newly seated sequence the number of its account."""
        request = sequence.request
        account = Account(request.priority, request.tenant, request.weight)
        number = self._number_of.get(account)
        if number is None:
            number = self._number_of[account] = self._new_number(account)
        self._num_seats[number] += 1
        sequence.account = number

    def leave(self, sequence: Sequence) -> None:
        """Count the seat that a sequence leaves."""
        number = sequence.account
        self._num_seats[number] -= 1
        if not self._num_seats[number]:
            del self._number_of[self._accounts[number]]
            self._free_numbers.append(number)

    def charge(self, plan: StepPlan, table: SeatTable) -> Iterator[tuple[Account, float]]:
        """Yield each account with its sampling sequences' tokens since they were last charged, by weight."""
        numbers, rows = table.numbers, plan.rows[plan.num_sampled > 0]
        num_new = numbers.num_tokens[rows] - numbers.num_charged_tokens[rows]
        numbers.num_charged_tokens[rows] = numbers.num_tokens[rows]
        sums = np.bincount(numbers.account[rows], weights=num_new)
        for number in sums.nonzero()[0].tolist():
            account = self._accounts[number]
            yield account, float(sums[number]) / account.weight

    def _new_number(self, account: Account) -> int:
        if self._free_numbers:
            number = self._free_numbers.pop()
            self._accounts[number] = account
            return number
        self._accounts.append(account)
        self._num_seats.append(0)
        return len(self._accounts) - 1
