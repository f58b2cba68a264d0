"""The minimum time a GPU needs for a piece of work: bytes over bandwidth, operations over arithmetic. Pure numbers.

Measurements are compared with it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.make_model import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """The limits of a device."""

    bytes_per_second: float
    flops_per_second: float
    kv_pool_bytes: float
    """Memory that an 8B model leaves for keys and values."""


H200 = DeviceLimits(bytes_per_second=4.3e12, flops_per_second=790e12, kv_pool_bytes=116.9e9)
"""Copies count bytes read and written; products are dense bf16. The pool holds 892,000 tokens of Llama-3.1-8B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Costs of one step and one token of a bf16 model. Attention adds operations per attended key."""

    weight_bytes: int
    flops_per_token: int
    kv_bytes_per_token: int
    flops_per_key: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A sum of requests. `seen_*` are attended keys, summed over all tokens of the prompts or the outputs."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    seen_by_prompts: float
    seen_by_outputs: float


def figures_of(shape: Shape) -> ModelFigures:
    """Count a decoder's weights that every step reads: all but the embedding, of which a step reads single rows.

    The head counts for every token, including prompt tokens, though only their last row is sampled: so do the published
    figures that tests compare with, and it slows the ideal by at most 7 % of the prompt's part.
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
    """Return the ideal mean number of sequences per decode step, limited by requests, memory and `max_num_seqs`."""
    most = work.num_requests if max_num_seqs is None else min(work.num_requests, max_num_seqs)
    return min(most, pool_batch(model, work, limits=limits))


def pool_batch(model: ModelFigures, work: Work, *, limits: DeviceLimits) -> float:
    """Return the number of sequences of mean length that fit in memory, regardless of the number of requests."""
    mean_context = work.seen_by_outputs / work.output_tokens
    return limits.kv_pool_bytes / model.kv_bytes_per_token / mean_context


def ideal_seconds(model: ModelFigures, work: Work, *, limits: DeviceLimits, batch: float) -> float:
    """Return the minimum time for prompts (arithmetic) and outputs (memory or arithmetic, whichever takes longer)."""
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
    """Return the bytes that one decode step reads: the weights once, and each sequence's keys and values."""
    return model.weight_bytes + batch * context * model.kv_bytes_per_token


def attention_bytes(*, batch: int, context: int, num_kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Return the bytes of keys and values read by a layer's decode attention, without queries and results (< 1 %)."""
    return 2 * batch * context * num_kv_heads * head_dim * element_bytes


def idle_share(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the share of the time from the first start to the last end in which no interval (start, end) runs."""
    ordered = sorted(intervals)
    if not ordered:
        raise ValueError("There are no intervals; nothing ran on the device during the measurement.")
    first, reached = ordered[0]
    idle = 0.0
    for start, end in ordered[1:]:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle / (reached - first)
