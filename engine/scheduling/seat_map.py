"""The seats of the running sequences: each one's row of the block table, and the blocks it holds.

A seat starts with the blocks that can be shared, grows block by block, and gives all of them back at once.
"""

from __future__ import annotations

import numpy as np

from engine.config import SchedulerConfig
from engine.scheduling.blocks import NO_PARENT, BlockPool, num_blocks_for
from engine.scheduling.in_flight import InFlightPrefixes
from engine.scheduling.request import Sequence
from engine.scheduling.seat_numbers import Int64
from engine.scheduling.seat_table import SeatTable


class SeatMap:
    """Own the rows of seated sequences, and their blocks in the table."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig) -> None:
        self._pool = pool
        self.has_prefix_cache = config.enable_prefix_caching
        self._in_flight = InFlightPrefixes()
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        max_blocks = min(num_blocks_for(config.max_model_len, pool.block_size), pool.capacity)
        self.table = SeatTable(config.max_num_seqs, max_blocks)

    @property
    def has_free_row(self) -> bool:
        """Tell whether one more sequence could take a seat, regardless of blocks."""
        return bool(self._free_rows)

    def find_prefix(self, sequence: Sequence) -> tuple[list[int], int]:
        """Return the blocks that a waiting sequence can share now, and its position in the chain after them."""
        max_blocks = sequence.num_sharable_tokens // self._pool.block_size
        if self.has_prefix_cache:
            return self._pool.match(sequence.chain, sequence.token_ids, max_blocks)
        leader = sequence.leader
        if leader is not None and leader.has_prompt_computed and leader.has_long_angles == sequence.has_long_angles:
            num_full = min(max_blocks, (sequence.num_prompt_tokens - 1) // self._pool.block_size)
            return leader.block_ids[:num_full], NO_PARENT  # none if the leader has left its seat
        return [], NO_PARENT

    def computer_of_next(self, sequence: Sequence, num_shared: int) -> Sequence | None:
        """Return the sequence that is computing the block after those that a waiting one can share now, if any."""
        num_sharable = sequence.num_sharable_tokens // self._pool.block_size
        if not self.has_prefix_cache or num_shared >= num_sharable:
            return None
        return self._in_flight.owner_of(sequence, num_shared)

    def seat(self, sequence: Sequence, shared: list[int], position: int) -> None:
        """Seat a sequence on the blocks that `find_prefix` returned. A row must be free."""
        self._pool.share(shared)
        self.table.take(self._free_rows.pop(), sequence, chain_position=position)
        self._own(sequence, shared)
        sequence.num_published_blocks = len(shared)
        if self.has_prefix_cache:
            self._in_flight.begin(sequence, len(shared), sequence.num_known_tokens // self._pool.block_size)

    def num_missing_blocks(self, sequence: Sequence, count: int) -> int:
        """Return how many more blocks the next `count` tokens need."""
        beyond = sequence.num_computed_tokens + count - sequence.num_blocks * self._pool.block_size
        return num_blocks_for(beyond, self._pool.block_size) if beyond > 0 else 0

    def missing_blocks(self, rows: Int64, counts: Int64) -> Int64:
        """Return how many more blocks the next `counts[i]` tokens of the sequence in each row need."""
        numbers, block_size = self.table.numbers, self._pool.block_size
        missing: Int64 = -((numbers.num_computed_tokens[rows] + counts) // -block_size) - numbers.num_blocks[rows]
        return np.maximum(missing, 0)

    def grow(self, sequence: Sequence, num_blocks: int) -> None:
        """Give a seated sequence more blocks; the pool must have them."""
        self._own(sequence, self._pool.allocate(num_blocks))

    def grow_rows(self, rows: Int64, num_blocks: Int64) -> None:
        """Give the sequence in each row `num_blocks[i]` more blocks, at least one; the pool must have them."""
        held = self.table.numbers.num_blocks
        owners = rows.repeat(num_blocks)
        nth = np.arange(len(owners)) - (num_blocks.cumsum() - num_blocks).repeat(num_blocks)
        self.table.block_tables[owners, held[owners] + nth] = self._pool.allocate(len(owners))
        held[rows] += num_blocks

    def publish(self, sequence: Sequence) -> None:
        """Make the blocks filled by computed tokens findable; only with a prefix cache."""
        seat = sequence.seat
        assert seat is not None, "the sequence has no seat"
        num_full = sequence.num_computed_tokens // self._pool.block_size
        block_ids, token_ids = seat.block_table, sequence.token_ids
        for index in range(sequence.num_published_blocks, num_full):
            digest, content = sequence.chain.at(index, token_ids)
            seat.chain_position = self._pool.publish(
                int(block_ids[index]), digest=digest, content=content, parent=seat.chain_position
            )
            self._in_flight.land(digest)
        sequence.num_published_blocks = num_full

    def forget_prefix(self, sequence: Sequence) -> None:
        """Make the blocks of the computed tokens unfindable; the sequence may have left its seat."""
        if self.has_prefix_cache:
            num_full = sequence.num_computed_tokens // self._pool.block_size
            self._pool.forget(sequence.chain.at(index, sequence.token_ids)[0] for index in range(num_full))

    def leave(self, sequence: Sequence) -> None:
        """Give the row and all blocks back."""
        self._in_flight.leave(sequence)
        self._pool.release(sequence.block_ids)
        self._free_rows.append(sequence.row)
        self.table.leave(sequence)

    def check_integrity(self, holders: list[Sequence]) -> None:
        """Raise AssertionError unless rows, tables and blocks are exactly those of the given sequences."""
        self._pool.check_integrity(block for sequence in holders for block in sequence.block_ids)
        rows = [sequence.row for sequence in holders] + self._free_rows
        assert sorted(rows) == list(range(len(self.table.block_tables))), "a row is lost or has two owners"
        assert not self.table.numbers.serial[self._free_rows].any(), "a free row has an owner"
        for sequence in holders:
            assert self.table.numbers.serial[sequence.row] == sequence.serial != 0, "a row has another owner"

    def _own(self, sequence: Sequence, blocks: list[int]) -> None:
        seat, start = sequence.seat, sequence.num_blocks
        assert seat is not None, "the sequence has no seat"
        seat.block_table[start : start + len(blocks)] = blocks
        sequence.num_blocks = start + len(blocks)
