"""Recovery times: how long the work that a fault hit had no result, from the ledger's entries after the run."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab.chaos.faults import Fault, HeldChunk
from lab.chaos.plan import Kind
from lab.chaos.stack import Stack

OF_A_WORKER = (Kind.WORKER_KILL, Kind.WORKER_STOP)
OF_AN_ENGINE = (Kind.ENGINE_KILL, Kind.ENGINE_FREEZE)
_OF_ALL = (Kind.STORE_TROUBLE, Kind.POSTGRES_CRASH, Kind.CONNECTIONS, Kind.SERVER_KILL, Kind.SERVER_HANG)
"""Faults that affect all work: a concurrent fault's recovery may be theirs, too."""
_FELT_SECONDS = 10.0
"""How long a fault is considered to affect others after its end."""
_ENTRIES = """
    SELECT extract(epoch FROM ledger.created_at)::float8, chunk.id, ledger.fence, chunk.batch_id, chunk.first_line
    FROM ledger JOIN chunk ON chunk.id = ledger.chunk_id WHERE ledger.num_results > 0 ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """Results of a chunk that were written together."""

    at: float
    chunk_id: int
    fence: int
    batch_id: str
    first_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Recovery of one fault in seconds: until the next result of the work it hit, or the longest pause overall."""

    kind: Kind
    seconds: float
    is_alone: bool
    """Whether no fault that affects all work was active meanwhile."""


def measure(stack: Stack, faults: Sequence[Fault]) -> list[Recovery]:
    """Return the recovery of every fault that hit work which went on."""
    return list(recoveries([Entry(*row) for row in stack.query(_ENTRIES)], faults))


def recoveries(entries: Sequence[Entry], faults: Sequence[Fault]) -> Iterator[Recovery]:
    """Yield the recovery of each fault; `entries` are ordered by time."""
    of_batch: Mapping[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        of_batch[entry.batch_id].append(entry)
    times = [entry.at for entry in entries]
    for fault in faults:
        if fault.kind in (*OF_A_WORKER, *OF_AN_ENGINE):
            at = min(_next_results(fault, of_batch), default=None)
            seconds = None if at is None else at - fault.at
        else:
            seconds = _longest_pause(times, fault.at, (fault.until or fault.at) + _FELT_SECONDS)
        if seconds is not None:
            yield Recovery(kind=fault.kind, seconds=seconds, is_alone=_is_alone(fault, seconds, faults))


def _next_results(fault: Fault, of_batch: Mapping[str, Sequence[Entry]]) -> Iterator[float]:
    """Yield, for each held chunk, the time of its next result that did not come from the faulty process."""
    for chunk in fault.held:
        for entry in of_batch.get(chunk.batch_id, ()):
            if _is_of(entry, chunk) and _is_later(entry, chunk, fault):
                yield entry.at
                break


def _is_of(entry: Entry, chunk: HeldChunk) -> bool:
    """Return whether an entry is of a chunk, or of a part of it after a split."""
    return chunk.first_line <= entry.first_line < chunk.first_line + chunk.num_lines


def _is_later(entry: Entry, chunk: HeldChunk, fault: Fault) -> bool:
    if fault.kind in OF_AN_ENGINE:
        return fault.until is not None and entry.at > fault.until
    return entry.at > fault.at and (entry.chunk_id, entry.fence) != (chunk.chunk_id, chunk.fence)


def _longest_pause(times: Sequence[float], start: float, end: float) -> float | None:
    first, last = bisect_right(times, start), bisect_right(times, end)
    around = times[max(first - 1, 0) : last + 1]
    return max((after - before for before, after in itertools.pairwise(around)), default=None)


def _is_alone(fault: Fault, seconds: float, faults: Iterable[Fault]) -> bool:
    start, end = fault.at, fault.at + seconds
    return not any(
        other is not fault and other.kind in _OF_ALL and other.at < end and (other.until or other.at) + 5.0 > start
        for other in faults
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is at or above `share` of all; `values` must not be empty."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
