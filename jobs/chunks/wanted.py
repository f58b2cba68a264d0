"""Which classes and tenants a worker may claim work of, independent of its open work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jobs.states import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Claimable work: any work of these classes, and otherwise work of newcomers whose turn it is."""

    classes: Collection[Priority] = tuple(Priority)
    newcomer_classes: Collection[Priority] = ()
    """Classes in which a tenant without work here, whose turn it is, need not wait for the others' work to end."""
    present: Collection[str] = ()
    """The ids of tenants that have work here."""
    are_newcomers_in_turn: bool = True
    """Whether newcomers are claimed only in their turn; otherwise they have turns among themselves."""

    @property
    def all_classes(self) -> list[Priority]:
        """Return the classes of which any work may be claimed, best first."""
        return [priority for priority in Priority if priority in self.classes or priority in self.newcomer_classes]


ANY = Wanted()
"""No restriction."""
