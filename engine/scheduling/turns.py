"""Turns between tenants: the tenant that was served the least for its weight is next.

The order within a tenant is the policy's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace

from engine.scheduling.request import Sequence
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

    def charge_output(self, sequences: Iterable[Sequence]) -> None:
        """Charge the tokens of sequences since they were last charged."""
        served: defaultdict[str, float] = defaultdict(float)
        for sequence in sequences:
            request = sequence.request
            served[request.tenant] += (sequence.num_tokens - sequence.num_charged_tokens) / request.weight
            sequence.num_charged_tokens = sequence.num_tokens
        for tenant, amount in served.items():
            self._served[tenant] = self.served(tenant) + amount

    def charge_time(self, sequence: Sequence, num_tokens: float) -> None:
        """Charge time that a sequence took for itself, as the tokens that could be computed in it."""
        request = sequence.request
        self._served[request.tenant] = self.served(request.tenant) + num_tokens / request.weight
