"""Turns between tenants: the order in which their work is served.

The lowest rank is served first. Within a rank the tenant served least recently is next; tenants not served yet go
before it, in the order of their arrival. The work of a tenant is served in the order of its arrival. So while a tenant
waits, each other tenant of its rank is served at most once before it, and a newcomer waits for no backlog. Each piece
of work is one turn; turns weighed by tokens are in `jobs.chunks.fair_order` and `engine.scheduling.turns`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

MAX_REMEMBERED = 1000
"""Number of tenants, by rank, whose last turn is remembered. A forgotten one counts as not served yet. It overtakes
nobody: those served before it are forgotten too, and keep their places.
"""

Work = TypeVar("Work")


@dataclass(frozen=True, slots=True, eq=False)
class Place(Generic[Work]):
    """The place of one piece of work in the queue; equal only to itself."""

    work: Work
    tenant: str
    rank: int


_Places = OrderedDict[Place[Work], None]
"""In order; removing the first takes constant time, unlike that of a dict."""


class TurnQueue(Generic[Work]):
    """Work that waits for its tenant's turn. `len()` is the amount waiting. For one thread, or under a lock."""

    def __init__(self) -> None:
        self._waiting: dict[int, OrderedDict[str, _Places[Work]]] = {}  # by rank and tenant, next turn first
        self._joined: set[int] = set()  # ranks with tenants at the end that are not sorted in yet
        # time of the last turn, by rank and tenant, in that order
        self._served: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._numbers = count(1)

    def __len__(self) -> int:
        return sum(len(places) for tenants in self._waiting.values() for places in tenants.values())

    def __iter__(self) -> Iterator[Place[Work]]:
        """Return all places: by rank, then tenants in the order of their turns, then by arrival."""
        return (place for places in self._in_turn() for place in places)

    @property
    def num_remembered(self) -> int:
        """Return for how many tenants and ranks the last turn is remembered."""
        return len(self._served)

    def put(self, work: Work, *, tenant: str, rank: int = 0) -> Place[Work]:
        """Add work; its place is for `take` or `leave`."""
        place = Place(work, tenant, rank)
        tenants = self._waiting.setdefault(rank, OrderedDict())
        if tenant not in tenants:
            tenants[tenant] = OrderedDict()
            self._joined.add(rank)
        tenants[tenant][place] = None
        return place

    def renew(self, works: Iterable[tuple[str, Work]]) -> None:
        """Replace all waiting work by this work of rank 0, by tenant. A tenant that still waits keeps its turn."""
        before = list(self)
        for tenant, work in works:
            self.put(work, tenant=tenant)
        for place in before:  # only now, so that a tenant does not leave in between
            self.leave(place)

    def first(self) -> Place[Work] | None:
        """Return the place that is served next; None where nothing waits."""
        return next(self.firsts(), None)

    def firsts(self) -> Iterator[Place[Work]]:
        """Return the first place of each tenant in each rank, in the order of their turns."""
        return (next(iter(places)) for places in self._in_turn())

    def take(self, place: Place[Work]) -> Work:
        """Remove a place and return its work as served: its tenant has had its turn."""
        self.leave(place)
        self._served[place.rank, place.tenant] = next(self._numbers)
        self._served.move_to_end((place.rank, place.tenant))
        if place.tenant in self._waiting.get(place.rank, ()):
            self._waiting[place.rank].move_to_end(place.tenant)
        if len(self._served) > MAX_REMEMBERED:
            self._served.popitem(last=False)
        return place.work

    def leave(self, place: Place[Work]) -> None:
        """Remove a place that was not served."""
        tenants = self._waiting[place.rank]
        del tenants[place.tenant][place]
        if not tenants[place.tenant]:
            del tenants[place.tenant]
        if not tenants:
            del self._waiting[place.rank]
            self._joined.discard(place.rank)

    def _in_turn(self) -> Iterator[_Places[Work]]:
        for rank in sorted(self._waiting):
            if rank in self._joined:
                self._joined.remove(rank)
                self._sort(rank)
            yield from self._waiting[rank].values()

    def _sort(self, rank: int) -> None:
        """Sort the newly joined tenants after those served earlier, or not yet, and before those served since."""
        in_turn = sorted(self._waiting[rank].items(), key=lambda item: self._served.get((rank, item[0]), 0))
        self._waiting[rank] = OrderedDict(in_turn)
