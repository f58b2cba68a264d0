"""Tests of a step's arrays: what consecutive steps share keeps its shape."""

from __future__ import annotations

import numpy as np

from engine.loop.batch import build_arrays
from engine.scheduling.plan import StepPlan
from tests.engine.sampling.builders import seated

BLOCK_SIZE = 16


def test_tables_keep_their_width_while_contexts_grow_by_a_few_blocks() -> None:
    """A shape that changes costs a recording of all layers on a CPU."""
    tables = np.arange(2 * 40, dtype=np.int32).reshape(2, 40)
    widths = []
    for context in (1, 16, 17, 128, 129, 600, 640):
        plan = StepPlan([seated([5] * context, [])], [context - 1], [1], [1])
        arrays = build_arrays(plan, tables, block_size=BLOCK_SIZE)
        assert arrays.block_tables.tolist() == tables[:1, : arrays.block_tables.shape[1]].tolist()
        assert arrays.context_lens.tolist() == [arrays.max_context_len] == [context]
        widths.append(arrays.block_tables.shape[1])
    assert widths == [8, 8, 8, 8, 16, 40, 40]


def test_decodes_are_laid_out_as_if_a_prompt_followed_them() -> None:
    tables = np.arange(3 * 8, dtype=np.int32).reshape(3, 8)
    decodes = [seated([5] * 20, [7], row=2), seated([5] * 33, [8], row=0)]
    alone = build_arrays(StepPlan(decodes, [20, 33], [1, 1], [1, 1]), tables, block_size=BLOCK_SIZE)
    plan = StepPlan([*decodes, seated([1, 2, 3], [], row=1)], [20, 33, 0], [1, 1, 3], [1, 1, 1])
    mixed = build_arrays(plan, tables, block_size=BLOCK_SIZE)
    for name in ("token_ids", "positions", "slots", "context_lens", "sampled_rows"):
        ours, theirs = getattr(alone, name), getattr(mixed, name)
        assert ours.dtype == theirs.dtype, name
        assert ours.tolist() == theirs[:2].tolist(), name
    assert alone.query_start.tolist() == [0, 1, 2]
    assert mixed.query_start.tolist() == [0, 1, 2, 5]
    assert (alone.num_decodes, mixed.num_decodes) == (2, 2)
    assert mixed.sampled_rows.tolist() == [0, 1, 4]
