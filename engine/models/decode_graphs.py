"""Replay the layers of a decode step as one CUDA graph, instead of launching some hundred kernels one by one.

A graph reads and writes the same memory each time, so a step's inputs are copied to where it was captured. It serves
one number of sequences; a step of fewer is padded with rows that read nothing and write nothing. The output matrix
after the layers, on the sampled rows, is cheap to launch and stays outside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor

from engine.models.step_model import StepTensors
from engine.scheduling.blocks import num_blocks_for
from kernels.paged import PagedStep

Hidden = tuple[Tensor, Tensor]
Compute = Callable[[], Hidden]

_DENSE_UP_TO = 256


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Return the numbers of sequences to capture, ascending: 8 apart up to 256, then 32, and `max_num_seqs` itself."""
    sizes = [1, 2, 4, *range(8, _DENSE_UP_TO, 8), *range(_DENSE_UP_TO, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


class DecodeGraphs:
    """Captured decode steps of several sizes over one cache.

    `forward` computes `[tokens, hidden]` twice from a step; `capture` makes a computation repeatable.
    """

    def __init__(
        self,
        forward: Callable[[StepTensors], Hidden],
        *,
        max_num_seqs: int,
        max_context_len: int,
        block_size: int,
        device: torch.device,
        capture: Callable[[Compute], Compute],
    ) -> None:
        self._inputs = _Inputs(
            max_num_seqs,
            max_blocks=num_blocks_for(max_context_len, block_size),
            max_context_len=max_context_len,
            device=device,
        )
        self._sizes = graph_sizes(max_num_seqs)
        self._results: Hidden | None = None
        self._graphs: dict[int, Compute] = {}
        for size in reversed(self._sizes):  # the largest first: the others reuse its memory
            self._inputs.fill_up(0, size)
            self._graphs[size] = capture(self._computation(forward, size))

    def run(self, step: StepTensors) -> Hidden | None:
        """Compute a step's layers; return None if it is no decode or has more sequences than were captured.

        The next run overwrites the two results.
        """
        count = step.paged.context_lens.shape[0]
        if step.paged.max_query_len != 1 or count > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, count)]
        self._inputs.copy_from(step)
        self._inputs.fill_up(count, size)
        x, residual = self._graphs[size]()
        return x[:count], residual[:count]

    def _computation(self, forward: Callable[[StepTensors], Hidden], size: int) -> Compute:
        step = self._inputs.first(size)

        def compute() -> Hidden:
            x, residual = forward(step)
            if self._results is None:  # in the first run of the largest size, before capturing
                self._results = torch.empty_like(x), torch.empty_like(residual)
            return self._results[0][:size].copy_(x), self._results[1][:size].copy_(residual)

        return compute


class _Inputs:
    """A decode step's inputs at fixed addresses."""

    def __init__(self, count: int, *, max_blocks: int, max_context_len: int, device: torch.device) -> None:
        self._max_context_len = max_context_len
        self._token_ids, self._positions, self._slots = torch.zeros((3, count), dtype=torch.int64, device=device)
        self._context_lens = torch.zeros(count, dtype=torch.int32, device=device)
        self._query_start = torch.arange(count + 1, dtype=torch.int32, device=device)
        self._block_tables = torch.zeros((count, max_blocks), dtype=torch.int32, device=device)

    def first(self, count: int) -> StepTensors:
        """Return the first rows as a step."""
        return StepTensors(
            token_ids=self._token_ids[:count],
            paged=PagedStep(
                block_tables=self._block_tables[:count],
                query_start=self._query_start[: count + 1],
                context_lens=self._context_lens[:count],
                slots=self._slots[:count],
                positions=self._positions[:count],
                max_query_len=1,
                max_context_len=self._max_context_len,
            ),
        )

    def copy_from(self, step: StepTensors) -> None:
        """Copy a step's inputs to the first rows."""
        paged = step.paged
        count, width = paged.block_tables.shape
        self._token_ids[:count].copy_(step.token_ids)
        self._positions[:count].copy_(paged.positions)
        self._slots[:count].copy_(paged.slots)
        self._context_lens[:count].copy_(paged.context_lens)
        self._block_tables[:count, :width].copy_(paged.block_tables)

    def fill_up(self, count: int, size: int) -> None:
        """Pad with rows from `count` on that write and read nothing; other stale values of earlier steps do no harm."""
        self._slots[count:size].fill_(-1)
        self._context_lens[count:size].zero_()


class CudaCapture:
    """Capture computations as CUDA graphs with shared scratch memory: no two of them run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        """Run it once, so that capturing compiles and sets up nothing; then capture it."""
        compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()

        def replay() -> Hidden:
            graph.replay()
            return result

        return replay
