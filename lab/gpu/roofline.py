"""The least time a GPU needs for a piece of work: bytes over bandwidth, operations over arithmetic. Pure numbers.

Knows neither a device nor an engine; what was measured is compared with it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.make_model import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """What a device can do."""

    bytes_per_second: float
    flops_per_second: float
    kv_pool_bytes: float
    """What an 8B model leaves for keys and values."""


H200 = DeviceLimits(bytes_per_second=4.3e12, flops_per_second=790e12, kv_pool_bytes=116.9e9)
"""Copies count bytes read and written; dense bf16 products. The pool holds 892,000 tokens of Llama-3.1-8B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """What one step and one token of a bf16 model cost. Attention's operations come on top, per key that is seen."""

    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_token: int
    flops_per_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Requests summed up. `seen_*` are keys that tokens attend to, over all tokens of the prompts or the outputs."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    seen_by_prompts: float
    seen_by_outputs: float


def figures_of(shape: Shape) -> ModelFigures:
    """Count a decoder's weights that every step reads: all but the embedding, of which a step takes single rows.

    The head counts for every token, for prompt tokens too, though only their last row is sampled: so do the published
    figures that tests compare with, and it makes the ideal slower by at most 7 % of the prompt's part.
    """
    head_dim = shape.head_dim or shape.hidden_size // shape.num_attention_heads
    queries, keys = head_dim * shape.num_attention_heads, head_dim * shape.num_key_value_heads
    layer = shape.hidden_size * (2 * queries + 2 * keys + 3 * shape.intermediate_size)
    weights = shape.num_hidden_layers * layer + shape.hidden_size * shape.vocab_size
    return ModelFigures(
        weight_bytes=2 * weights,
        flops_per_token=2 * weights,
        kv_bytes_per_token=2 * 2 * keys * shape.num_hidden_layers,
        flops_per_key=4 * queries * shape.num_hidden_layers,
    )


def work_of(requests: Iterable[tuple[int, int]]) -> Work:
    """Sum up requests given as (prompt tokens, output tokens)."""
    pairs = list(requests)
    return Work(
        num_requests=len(pairs),
        prompt_tokens=sum(prompt for prompt, _ in pairs),
        output_tokens=sum(output for _, output in pairs),
        seen_by_prompts=sum(prompt * prompt / 2 for prompt, _ in pairs),
        seen_by_outputs=sum(output * (prompt + output / 2) for prompt, output in pairs),
    )


def ideal_batch(model: ModelFigures, work: Work, *, limits: DeviceLimits, max_num_seqs: int | None = None) -> float:
    """Return how many sequences decode together on average at best: all there are, all that fit, all that may."""
    most = work.num_requests if max_num_seqs is None else min(work.num_requests, max_num_seqs)
    return min(most, pool_batch(model, work, limits=limits))


def pool_batch(model: ModelFigures, work: Work, *, limits: DeviceLimits) -> float:
    """Return how many sequences of mean length fit in memory, however many requests there are."""
    mean_context = work.seen_by_outputs / work.output_tokens
    return limits.kv_pool_bytes / model.kv_bytes_per_token / mean_context


def ideal_seconds(model: ModelFigures, work: Work, *, limits: DeviceLimits, batch: float) -> float:
    """Return the least time for prompts (arithmetic) and then outputs (memory or arithmetic, whichever takes longer).

    Every decode step reads the weights once and each of its `batch` sequences' keys and values.
    """
    prompts = work.prompt_tokens * model.flops_per_token + work.seen_by_prompts * model.flops_per_key
    outputs = work.output_tokens * model.flops_per_token + work.seen_by_outputs * model.flops_per_key
    read = work.output_tokens / batch * model.weight_bytes + work.seen_by_outputs * model.kv_bytes_per_token
    return prompts / limits.flops_per_second + max(read / limits.bytes_per_second, outputs / limits.flops_per_second)


def ideal_tokens_per_second(
    model: ModelFigures, work: Work, *, limits: DeviceLimits, max_num_seqs: int | None = None
) -> float:
    """Return output tokens per second at the ideal time and batch."""
    batch = ideal_batch(model, work, limits=limits, max_num_seqs=max_num_seqs)
    return work.output_tokens / ideal_seconds(model, work, limits=limits, batch=batch)


def decode_step_bytes(model: ModelFigures, *, batch: int, context: float) -> float:
    """Return what one decode step reads: the weights once, each sequence's keys and values."""
    return model.weight_bytes + batch * context * model.kv_bytes_per_token


def attention_bytes(*, batch: int, context: int, num_kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Return the keys and values that decode attention of one layer reads; queries and results are left out (< 1 %)."""
    return 2 * batch * context * num_kv_heads * head_dim * element_bytes


def idle_share(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the share of the time from the first start to the last end in which no interval (start, end) runs."""
    ordered = sorted(intervals)
    if not ordered:
        raise ValueError("There are no intervals; nothing ran on the device while it was watched.")
    first, reached = ordered[0]
    idle = 0.0
    for start, end in ordered[1:]:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle / (reached - first)
