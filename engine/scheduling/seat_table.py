"""Running sequences' numbers in arrays, an entry per seat, so that a step works on those of all at once. numpy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.scheduling.request import Sequence
from engine.scheduling.seat_numbers import MAX_STOP_TOKENS, NAMES, Int64, Seat, SeatNumbers

_NUM_FRESH_TOKENS = 64
"""Tokens that a seat holds until its sequence puts them into its list, which takes as long for one as for many."""

_NO_STOP = -1


class SeatTable:
    """The arrays of all seats. `block_tables` `[num_seats, max_blocks]` int32 holds the blocks of each."""

    def __init__(self, num_seats: int, max_blocks: int) -> None:
        self._cells = np.zeros((len(NAMES), num_seats), dtype=np.int64)
        self.numbers = SeatNumbers(*self._cells)
        self.block_tables: npt.NDArray[np.int32] = np.zeros((num_seats, max_blocks), dtype=np.int32)
        self._stop_token_ids = np.full((num_seats, MAX_STOP_TOKENS), _NO_STOP, dtype=np.int64)
        self._fresh_token_ids = np.zeros((num_seats, _NUM_FRESH_TOKENS), dtype=np.int64)

    def take(self, row: int, sequence: Sequence, *, chain_position: int) -> None:
        """Seat a sequence in a free row; its numbers are there until it leaves."""
        assert not self.numbers.serial[row], "the row is taken"
        self._cells[:, row] = sequence.numbers
        stops = sorted(sequence.stop_token_ids)[:MAX_STOP_TOKENS]
        self._stop_token_ids[row] = _NO_STOP
        self._stop_token_ids[row, : len(stops)] = stops
        self.numbers.asks_more[row] = sequence.records_more
        self.numbers.num_prompt_tokens[row] = sequence.num_prompt_tokens
        self.numbers.max_total_tokens[row] = sequence.max_total_tokens
        numbers = self._cells[:, row].data
        sequence.sit(Seat(row, numbers, self.block_tables[row], self._fresh_token_ids[row], chain_position))

    def leave(self, sequence: Sequence) -> None:
        """Free the sequence's row."""
        row = sequence.row
        sequence.stand_up()
        self._cells[:, row] = 0

    def hold(self, rows: Int64, serials: Int64) -> npt.NDArray[np.bool_]:
        """Tell of each row whether the sequence of that serial sits there."""
        is_same: npt.NDArray[np.bool_] = self.numbers.serial[rows] == serials
        return is_same

    def is_stop(self, rows: Int64, token_ids: Int64) -> npt.NDArray[np.bool_]:
        """Tell of each row whether the token is one of its sequence's stop tokens."""
        is_any: npt.NDArray[np.bool_] = (self._stop_token_ids[rows] == token_ids[:, None]).any(axis=1)
        return is_any

    def expect_tokens(self, rows: Int64) -> None:
        """Count a token for each row that the device is drawing; `append` adds its value."""
        self.numbers.num_pending[rows] += 1
        self.numbers.num_tokens[rows] += 1

    def append(self, rows: Int64, token_ids: Int64) -> Int64:
        """Append a token to the sequence of each row. Return those rows whose fresh tokens must go into their lists."""
        numbers = self.numbers
        numbers.last_token_id[rows] = token_ids
        numbers.num_tokens[rows] += numbers.num_pending[rows] == 0
        numbers.num_pending[rows] = 0
        num_fresh = numbers.num_fresh_tokens[rows]
        self._fresh_token_ids[rows, num_fresh] = token_ids
        numbers.num_fresh_tokens[rows] = num_fresh + 1
        full: Int64 = (num_fresh + 1 == _NUM_FRESH_TOKENS).nonzero()[0]
        return full
