"""Seats of each tenant in each priority class, and which tenant holds far more than its weight's share."""

from __future__ import annotations

from collections import Counter, defaultdict

from engine.scheduling.request import Request, Sequence

_FAR_MORE = 2
"""How many times the seats, by weight, that another would hold with one more: a seat changes hands only if shares
become more even, and never goes back. Of two tenants of one weight, the later one gets a third.
"""


class SeatShares:
    """Count seats as they are taken and left."""

    def __init__(self) -> None:
        self._num_seats: defaultdict[int, Counter[str]] = defaultdict(Counter)  # by priority, then tenant
        self._weights: dict[str, float] = {}  # of tenants with a seat, from their last request

    def take(self, sequence: Sequence) -> None:
        """Count the seat that a sequence takes."""
        request = sequence.request
        self._num_seats[request.priority][request.tenant] += 1
        self._weights[request.tenant] = request.weight

    def leave(self, sequence: Sequence) -> None:
        """Count the seat that a sequence has left."""
        request = sequence.request
        seats = self._num_seats[request.priority]
        seats[request.tenant] -= 1
        if not seats[request.tenant]:
            del seats[request.tenant]
        if not seats:
            del self._num_seats[request.priority]
        if not any(request.tenant in others for others in self._num_seats.values()):
            del self._weights[request.tenant]

    def holder_of_far_more(self, request: Request) -> str | None:
        """Return the tenant with the most seats of a request's class, if it has far more than the request's tenant."""
        seats = self._num_seats.get(request.priority)
        if not seats:
            return None
        most = max(seats, key=lambda tenant: seats[tenant] / self._weights[tenant])
        with_one_more = (seats[request.tenant] + 1) / request.weight  # a Counter returns 0 for missing keys
        has_far_more = seats[most] / self._weights[most] >= _FAR_MORE * with_one_more
        return most if most != request.tenant and has_far_more else None
