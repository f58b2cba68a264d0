"""The numbers of a sequence that steps read and change, and the row that each is kept in. numpy only.

Each number has one home: a sequence keeps its numbers in a row of its own, and in its seat's row while it has a seat.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol, Self, overload

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

MAX_STOP_TOKENS = 8
"""Stop tokens that a seat holds; a sequence with more is recorded by itself."""


@dataclass(frozen=True, slots=True)
class SeatNumbers:
    """Numbers of sequences, `[num_seats]` each; 0 in a free seat. `Sequence` has each of them as an attribute."""

    serial: Int64
    """Differs between any two sequences; never 0, so that it tells whether a sequence still has the seat."""
    num_tokens: Int64
    """Above `num_computed_tokens` while it runs: the last token is computed one step after it was sampled."""
    num_pending: Int64
    """How many of them the host does not know yet: a step may be planned before it knows the last step's."""
    last_token_id: Int64
    num_computed_tokens: Int64
    """Only the scheduler writes this and the next one."""
    num_cached_tokens: Int64
    num_drafts: Int64
    num_prompt_tokens: Int64
    max_total_tokens: Int64
    num_blocks: Int64
    """Blocks in its row of the block table; only `SeatMap` writes this and the next one."""
    num_published_blocks: Int64
    """How many of the blocks, from the first on, others can find."""
    num_fresh_tokens: Int64
    """Its newest tokens that are in the seat and not in its list yet."""
    num_held_tokens: Int64
    """Its newest tokens that are not reported yet; only the recorder writes this and the next one."""
    last_token_ns: Int64
    """When its newest token came, in nanoseconds on the scheduler's clock; -1 before the first."""
    account: Int64
    """The number of its tenant's account; only policies that charge write this and the next one."""
    num_charged_tokens: Int64
    """Number of tokens charged to its tenant."""
    has_long_angles: Int64
    """Whether its keys use the angles of sequences longer than `SchedulerConfig.angles_change_after`; written by the
    scheduler.
    """
    is_watched: Int64
    """Whether its tokens are reported as they come: the reader searches them for a stop string."""
    asks_more: Int64
    """Whether its tokens are recorded one by one; see `Sequence.records_more`."""


NAMES = tuple(one.name for one in fields(SeatNumbers))


class HasNumbers(Protocol):
    """A sequence, as `SeatNumber` uses it."""

    numbers: memoryview[int]


class SeatNumber:
    """An attribute of a sequence whose value is in the row of that name: its own, or its seat's."""

    __slots__ = ("_index",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._index = NAMES.index(name)

    @overload
    def __get__(self, sequence: None, owner: type) -> Self: ...

    @overload
    def __get__(self, sequence: HasNumbers, owner: type) -> int: ...

    def __get__(self, sequence: HasNumbers | None, owner: type) -> int | Self:
        return self if sequence is None else sequence.numbers[self._index]

    def __set__(self, sequence: HasNumbers, value: int) -> None:
        sequence.numbers[self._index] = value


def own_numbers() -> memoryview[int]:
    """Return the row of a sequence without a seat: zeros, in the order of `SeatNumbers`."""
    return np.zeros(len(NAMES), dtype=np.int64).data


@dataclass(slots=True, eq=False)
class Seat:
    """A running sequence's part of the table, as views of its arrays."""

    row: int
    numbers: memoryview[int]
    block_table: npt.NDArray[np.int32]
    fresh_token_ids: Int64
    chain_position: int
    """Position in the pool's chain of findable blocks after the published ones."""


def ints(values: Any) -> Int64:
    """Return the values as an array of int64."""
    return np.asarray(values, dtype=np.int64)
