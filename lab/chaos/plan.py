"""The times of faults: drawn from a seed, each kind spread over the whole run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

TROUBLE_SECONDS = 20.0
"""Duration of one trouble of the object store."""
OUTAGE_SECONDS = 60.0
"""Duration of one outage of Valkey."""
HANG_SECONDS = 12.0
"""How long a server of somebody else hangs: longer than a worker waits for an answer."""
BLOCK_SECONDS = 4.0
"""How long connections pass nothing on before they are cut."""


class Kind(StrEnum):
    """The kinds of faults."""

    WORKER_KILL = "worker killed"
    WORKER_STOP = "worker stopped past its lease"
    ENGINE_KILL = "engine killed"
    ENGINE_FREEZE = "engine frozen"
    VALKEY_LOSS = "Valkey killed and its data lost"
    VALKEY_OUTAGE = "Valkey away for 60 s"
    POSTGRES_CRASH = "Postgres crashed"
    CONNECTIONS = "connections broken"
    ROLE_KILL = "API, control worker or dispatcher killed"
    STORE_TROUBLE = "object store in trouble"
    SERVER_KILL = "server of the engine killed"
    SERVER_HANG = "server of the engine hung"
    SERVER_CUT = "connections to the server cut"


@dataclass(frozen=True, slots=True, order=True)
class PlannedFault:
    """A fault at a time in seconds from the start."""

    at_seconds: float
    kind: Kind
    number: int
    """Index among the faults of its kind; determines its variant."""


def plan_faults(counts: Mapping[Kind, int], *, seconds: float, seed: int) -> list[PlannedFault]:
    """Return the faults in order: each of the n faults of a kind lies in its own nth of the time."""
    rng = random.Random(seed)
    return sorted(fault for kind in Kind for fault in _of_kind(kind, counts.get(kind, 0), seconds, rng))


def _of_kind(kind: Kind, num: int, seconds: float, rng: random.Random) -> Iterator[PlannedFault]:
    for number in range(num):
        yield PlannedFault((number + rng.random()) / num * seconds, kind, number)
