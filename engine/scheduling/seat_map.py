"""The seats of the running sequences: each one's row of the block table, and the blocks it holds.

A seat starts with the blocks that can be shared, grows block by block, and gives all of them back at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.config import SchedulerConfig
from engine.scheduling.blocks import NO_PARENT, BlockPool, num_blocks_for
from engine.scheduling.in_flight import InFlightPrefixes
from engine.scheduling.request import Seat, Sequence


class SeatMap:
    """Own the rows of seated sequences and fill `block_tables` `[max_num_seqs, max_blocks]` int32 in place."""

    def __init__(self, pool: BlockPool, config: SchedulerConfig) -> None:
        self._pool = pool
        self.has_prefix_cache = config.enable_prefix_caching
        self._in_flight = InFlightPrefixes()
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))
        max_blocks = min(num_blocks_for(config.max_model_len, pool.block_size), pool.capacity)
        self.block_tables: npt.NDArray[np.int32] = np.zeros((config.max_num_seqs, max_blocks), dtype=np.int32)

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
        sequence.seat = seat = Seat(self._free_rows.pop(), [], len(shared), position)
        self._own(seat, shared)
        if self.has_prefix_cache:
            self._in_flight.begin(sequence, len(shared), sequence.num_known_tokens // self._pool.block_size)

    def num_missing_blocks(self, sequence: Sequence, count: int) -> int:
        """Return how many more blocks the next `count` tokens need."""
        beyond = sequence.num_computed_tokens + count - len(sequence.block_ids) * self._pool.block_size
        return num_blocks_for(beyond, self._pool.block_size) if beyond > 0 else 0

    def grow(self, sequence: Sequence, num_blocks: int) -> None:
        """Give a seated sequence more blocks; the pool must have them."""
        assert sequence.seat is not None, "the sequence has no seat"
        self._own(sequence.seat, self._pool.allocate(num_blocks))

    def publish(self, sequence: Sequence) -> None:
        """Make the blocks filled by computed tokens findable; only with a prefix cache."""
        seat = sequence.seat
        assert seat is not None, "the sequence has no seat"
        num_full = sequence.num_computed_tokens // self._pool.block_size
        for index in range(seat.num_published_blocks, num_full):
            digest, content = sequence.chain.at(index, sequence.token_ids)
            seat.chain_position = self._pool.publish(
                seat.block_ids[index], digest=digest, content=content, parent=seat.chain_position
            )
            self._in_flight.land(digest)
        seat.num_published_blocks = num_full

    def forget_prefix(self, sequence: Sequence) -> None:
        """Make the blocks of the computed tokens unfindable; the sequence may have left its seat."""
        if self.has_prefix_cache:
            num_full = sequence.num_computed_tokens // self._pool.block_size
            self._pool.forget(sequence.chain.at(index, sequence.token_ids)[0] for index in range(num_full))

    def leave(self, sequence: Sequence) -> None:
        """Give the row and all blocks back."""
        self._in_flight.leave(sequence)
        seat, sequence.seat = sequence.seat, None
        assert seat is not None, "the sequence has no seat"
        self._pool.release(seat.block_ids)
        self._free_rows.append(seat.row)

    def check_integrity(self, holders: list[Sequence]) -> None:
        """Raise AssertionError unless rows, tables and blocks are exactly those of the given sequences."""
        self._pool.check_integrity(block for sequence in holders for block in sequence.block_ids)
        rows = [sequence.row for sequence in holders] + self._free_rows
        assert sorted(rows) == list(range(len(self.block_tables))), "a row is lost or has two owners"
        for sequence in holders:
            table = self.block_tables[sequence.row, : len(sequence.block_ids)]
            assert table.tolist() == sequence.block_ids, "the block table differs from the blocks owned"

    def _own(self, seat: Seat, blocks: list[int]) -> None:
        start = len(seat.block_ids)
        self.block_tables[seat.row, start : start + len(blocks)] = blocks
        seat.block_ids.extend(blocks)
