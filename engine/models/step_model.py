"""The runner's interface to a model of any modelling code: shapes, no weights and no layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.models.adapters.adapter import AdapterRows
from kernels import cpu
from kernels.paged import LayerCache, PagedStep


@dataclass(slots=True, kw_only=True)
class StepTensors:
    """One step's inputs on the device."""

    token_ids: Tensor
    """`[tokens]` int64."""
    paged: PagedStep
    """Layout of these tokens in the cache."""
    adapters: Sequence[AdapterRows] = ()
    """The tokens that are computed with an adapter, each by one."""


KvCache = list[LayerCache]
"""Keys and values of every layer, in the order of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """What one layer caches for one token: a key and a value of `[num_heads, head_dim]` each."""

    num_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Weights in the layers and in the output matrix, and their bytes; query heads times head size, over all layers."""

    num_layer_weights: int
    num_head_weights: int
    num_layer_bytes: int
    num_head_bytes: int
    attention_width: int


class StepModel(Protocol):
    """A model on a device that runs one step after the other over a paged KV cache."""

    @property
    def kv_shapes(self) -> Sequence[KvShape]:
        """Return what each layer caches, in the order of the cache."""
        ...

    @property
    def sizes(self) -> ModelSizes:
        """Return how many weights every token and every sampled row is multiplied with."""
        ...

    @property
    def products(self) -> str | None:
        """Return the names of the products that multiply its weights; None if they were not chosen here."""
        ...

    def run(self, step: StepTensors, cache: KvCache, rows: Tensor) -> Tensor:
        """Compute every token of the step, write its keys and values, return the logits of some rows.

        `rows` `[rows]` int64 on the device are indices of flat tokens, ascending, distinct, perhaps none; the result is
        `[rows, vocab]` in the model's dtype. `cache` has one pair for each of `kv_shapes`.
        """
        ...

    def run_in_parts(self, step: StepTensors, cache: KvCache, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """Run the step like `run` and yield the logits of each part's rows, computed on demand.

        The logits of many rows thus need not be in memory at the same time.
        """
        ...

    def capture_decodes(self, cache: KvCache, *, max_num_seqs: int, max_context_len: int) -> None:
        """Capture decode steps of up to `max_num_seqs` sequences over this cache as CUDA graphs, for `run` to replay.

        Does nothing if a model's code cannot be captured.
        """
        ...


def new_cache(
    kv_shapes: Sequence[KvShape], *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KvCache:
    """Return a cache of zeros with `num_blocks` blocks in every layer; on a CPU it uses huge pages if possible."""

    def zeros(shape: KvShape) -> Tensor:
        size = (num_blocks, shape.num_heads, block_size, shape.head_dim)
        return cpu.zeros(size, dtype) if device.type == "cpu" else torch.zeros(size, dtype=dtype, device=device)

    return [LayerCache(zeros(shape), zeros(shape)) for shape in kv_shapes]
