"""Tests of a step's arrays: what consecutive steps share keeps its shape."""

from __future__ import annotations

import numpy as np

from engine.loop.batch import build_arrays
from engine.scheduling.seat_table import SeatTable
from tests.engine.sampling.builders import plan_of, seated

BLOCK_SIZE = 16


def filled_table(num_seats: int, max_blocks: int) -> SeatTable:
    seats = SeatTable(num_seats, max_blocks)
    seats.block_tables[:] = np.arange(num_seats * max_blocks).reshape(num_seats, max_blocks)
    return seats


def test_tables_keep_their_width_while_contexts_grow_by_a_few_blocks() -> None:
    """A shape that changes costs a recording of all layers on a CPU."""
    seats = filled_table(2, 40)
    widths = []
    for context in (1, 16, 17, 128, 129, 600, 640):
        sequence = seated([5] * context, [], table=seats)
        arrays = build_arrays(plan_of(seats, [sequence]), seats, block_size=BLOCK_SIZE)
        seats.leave(sequence)
        assert arrays.block_tables.tolist() == seats.block_tables[:1, : arrays.block_tables.shape[1]].tolist()
        assert arrays.context_lens.tolist() == [arrays.max_context_len] == [context]
        widths.append(arrays.block_tables.shape[1])
    assert widths == [8, 8, 8, 8, 16, 40, 40]


def test_decodes_are_laid_out_as_if_a_prompt_followed_them() -> None:
    seats = filled_table(3, 8)
    decodes = [seated([5] * 20, [7], row=2, table=seats), seated([5] * 33, [8], row=0, table=seats)]
    alone = build_arrays(plan_of(seats, decodes), seats, block_size=BLOCK_SIZE)
    prompt = seated([1, 2, 3], [], row=1, table=seats)
    mixed = build_arrays(plan_of(seats, [*decodes, prompt], [1, 1, 3]), seats, block_size=BLOCK_SIZE)
    for name in ("token_ids", "positions", "slots", "context_lens", "sampled_rows"):
        ours, theirs = getattr(alone, name), getattr(mixed, name)
        assert ours.dtype == theirs.dtype, name
        assert ours.tolist() == theirs[:2].tolist(), name
    assert alone.query_start.tolist() == [0, 1, 2]
    assert mixed.query_start.tolist() == [0, 1, 2, 5]
    assert (alone.num_decodes, mixed.num_decodes) == (2, 2)
    assert mixed.sampled_rows.tolist() == [0, 1, 4]
