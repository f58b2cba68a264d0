"""What answers a worker's lines: the kind, version and data type of its engine, and what it can do. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.accounts.prices import Prices
from jobs.engines.names import OWN, label
from jobs.lines.needs import NOTHING, Need

EVERYTHING = ~NOTHING
"""What our engine meets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """The terms of a server outside the house: it answers lines that the workers of the house cannot finish in time."""

    budget_picos: int
    """The most that all such servers of a model may cost on a day (UTC)."""
    prices: Prices = field(default_factory=Prices)
    """What the operator pays for tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEngine:
    """The engine of a worker, as of now; without arguments ours, of whatever version and data type."""

    kind: str = OWN
    version: str | None = None
    """As it tells; None: it does not."""
    dtype: str | None = None
    """Of its computation; None where unknown."""
    meets: Need = EVERYTHING
    """Only chunks that need nothing else are claimed."""
    spill: Spill | None = None
    """None: it is of the house, as our own is."""
    adapters: frozenset[str] = frozenset()
    """Names of adapters at the server, or folders of those that ours can read."""

    @property
    def is_own(self) -> bool:
        return self.kind == OWN

    def wire(self) -> dict[str, str | bool | None]:
        """Return the field `engine` of a result."""
        dtype = {} if self.dtype is None else {"dtype": self.dtype}
        outside = {} if self.spill is None else {"is_outside": True}
        return {"name": self.kind, "version": self.version, **dtype, **outside}

    def may_share(self, body: Mapping[str, Any]) -> bool:
        """Return whether a result's body is of this kind and data type; of none, it is from before they were named."""
        named = body.get("engine")
        return not isinstance(named, dict) or (named.get("name"), named.get("dtype")) == (self.kind, self.dtype)

    @property
    def label(self) -> str:
        return label(self.kind, self.version)


OWN_ENGINE = ServingEngine()
UNKNOWN_ENGINE = ServingEngine(kind="unknown", meets=NOTHING)
"""Of a worker that does not serve yet: its server has not answered, or it loads its model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An engine that has served a model, as far as is known."""

    kind: str
    version: str | None
    meets: Need
    may_meet: Need
    """The same with what has not been seen either way yet."""

    @property
    def label(self) -> str:
        return label(self.kind, self.version)


def missing(needs: Need, engines: Sequence[Known]) -> Need:
    """Return what to name of a line's needs if no engine offers them all; nothing if one may, or none is known."""
    return missing_at_once(needs, [engine.may_meet for engine in engines])


def missing_at_once(needs: Need, offers: Sequence[Need]) -> Need:
    """Return what all offers lack of these needs, or else what the nearest one lacks; nothing if one has them all."""
    lacking = [needs & ~offered for offered in offers]
    if not lacking or NOTHING in lacking:
        return NOTHING
    common = lacking[0]
    for one in lacking[1:]:
        common &= one
    return common or min(lacking, key=lambda need: len(need.names()))
