"""Of which classes, and of whom, a worker may take up work. Knows not what it has open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from jobs.states import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What may be taken up: work of these classes, whosever it is; else that of a newcomer whose turn it is."""

    classes: Collection[Priority] = tuple(Priority)
    newcomer_classes: Collection[Priority] = ()
    """Where the turn in these is a tenant's that has no work here, it need not wait for the others' to end."""
    present: Collection[str] = ()
    """The ids of tenants that have work here."""
    are_newcomers_in_turn: bool = True
    """Whether newcomers are taken only while it is their turn; else they have turns among themselves."""

    @property
    def all_classes(self) -> list[Priority]:
        """Return the classes of which any work may be taken up, best first."""
        return [priority for priority in Priority if priority in self.classes or priority in self.newcomer_classes]


ANY = Wanted()
"""Whatever there is."""
