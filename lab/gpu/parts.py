"""Measure the parts of a step in isolation: the device, paged attention, a model's forward pass. No scheduler."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from engine.loop.runner import load_model
from engine.models.config import load_model_config
from engine.models.step_model import StepTensors, new_cache
from kernels.gpu import attention as paged_attention_triton
from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention
from lab.gpu.engines import BLOCK_SIZE, model_directory
from lab.gpu.roofline import attention_bytes, decode_step_bytes, figures_of
from lab.gpu.scale import Scale
from lab.gpu.sections import Row
from lab.gpu.timing import copy_bandwidth, device_name, product_rate, seconds_per_call

GB, TFLOP = 1e9, 1e12
_HEAD_DIM = 128

_TILES = ((32, 5), (64, 5), (32, 7), (64, 3))
"""Keys per tile and pipeline stages of a decode; the first pair is what heads of 128 use in bf16."""


def measure_device(scale: Scale, device: torch.device) -> list[Row]:
    """Measure the device's best rates, beside those that the rooflines assume."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton", "transformers"))
    return [
        Row(
            what="copy",
            measured=copy_bandwidth(device, num_bytes=scale.copy_bytes) / GB,
            unit="GB/s",
            ideal=scale.limits.bytes_per_second / GB,
            settings=f"{device_name(device)}; {versions}",
            note=f"{scale.copy_bytes} bytes, counting reads and writes",
        ),
        Row(
            what="bf16 product",
            measured=product_rate(device, size=scale.product_size) / TFLOP,
            unit="TFLOP/s",
            ideal=scale.limits.flops_per_second / TFLOP,
            note=f"two square matrices of {scale.product_size}, random numbers",
        ),
    ]


def measure_attention(scale: Scale, device: torch.device) -> list[Row]:
    """Measure paged decode attention of one layer against this device's own copy bandwidth."""
    bandwidth = copy_bandwidth(device, num_bytes=scale.copy_bytes)
    return [
        _attention_row(scale, device, context, heads=heads, kv_heads=kv_heads, bandwidth=bandwidth)
        for heads, kv_heads in scale.attention_heads
        for context in scale.attention_contexts
    ]


def measure_tiles(scale: Scale, device: torch.device) -> list[Row]:
    """Measure the same attention with tiles other than those of `attention_config`, to choose the best."""
    bandwidth = copy_bandwidth(device, num_bytes=scale.copy_bytes)
    heads, kv_heads = scale.attention_heads[0]
    rows = []
    for block_n, num_stages in _TILES:
        with _tiles(block_n, num_stages):
            for context in scale.attention_contexts:
                row = _attention_row(scale, device, context, heads=heads, kv_heads=kv_heads, bandwidth=bandwidth)
                rows.append(replace(row, what=f"tiles of {block_n} keys, {num_stages} stages, {row.what}"))
    return rows


@contextmanager
def _tiles(block_n: int, num_stages: int) -> Iterator[None]:
    """Launch attention with these tiles."""
    pick = paged_attention_triton.attention_config

    def attention_config(**batch: int) -> paged_attention_triton.AttentionConfig:
        return replace(pick(**batch), block_n=block_n, num_stages=num_stages)

    paged_attention_triton.attention_config = attention_config
    try:
        yield
    finally:
        paged_attention_triton.attention_config = pick


def _attention_row(
    scale: Scale,
    device: torch.device,
    context: int,
    *,
    heads: int,
    kv_heads: int,
    bandwidth: float,
) -> Row:
    run = _attention(scale.attention_batch, context, heads=heads, kv_heads=kv_heads, device=device)
    seconds = seconds_per_call(run, device, calls=10)
    read = attention_bytes(
        batch=scale.attention_batch, context=context, num_kv_heads=kv_heads, head_dim=_HEAD_DIM, element_bytes=2
    )
    return Row(
        what=f"{heads}/{kv_heads} heads, context {context}",
        measured=read / seconds / GB,
        unit="GB/s",
        ideal=bandwidth / GB,
        settings=f"batch {scale.attention_batch}, bf16, blocks of {BLOCK_SIZE} in random order",
        note=f"{seconds * 1e6:.0f} us a call; the ideal is this device's copy bandwidth",
    )


@torch.inference_mode()
def measure_forward(scale: Scale, device: torch.device) -> list[Row]:
    """Measure only a decode step's forward pass: the engine's step without its host side."""
    batch, context = scale.step_batch, scale.step_context
    with model_directory(scale.llama) as path:
        config = load_model_config(str(path))
        assert config.max_model_len is not None, "every shape has one"
        model = load_model(
            config, dtype=torch.bfloat16, device=device, max_positions=config.max_model_len, random_seed=0
        )
    blocks = _blocks(batch, context, device)
    cache = new_cache(
        model.kv_shapes, num_blocks=blocks.numel() + 1, block_size=BLOCK_SIZE, dtype=torch.bfloat16, device=device
    )
    step = StepTensors(
        token_ids=torch.arange(batch, device=device),
        paged=_decode_step(blocks, context),
    )
    rows = torch.arange(batch, device=device)
    seconds = seconds_per_call(lambda: model.run(step, cache, rows), device, calls=scale.num_steps)
    read = decode_step_bytes(figures_of(scale.llama), batch=batch, context=context)
    ideal = scale.limits.bytes_per_second
    return [
        Row(
            what=f"forward pass, batch {batch}, context {context}",
            measured=read / seconds / GB,
            unit="GB/s",
            ideal=ideal / GB,
            settings=f"bf16, blocks of {BLOCK_SIZE} in random order, no CUDA graph",
            note=f"{seconds * 1e3:.2f} ms, ideal {read / ideal * 1e3:.2f} ms; layers and logits, no sampling, no host",
        )
    ]


def _attention(batch: int, context: int, *, heads: int, kv_heads: int, device: torch.device) -> Callable[[], Tensor]:
    blocks = _blocks(batch, context, device)
    shape = (blocks.numel() + 1, kv_heads, BLOCK_SIZE, _HEAD_DIM)
    cache = LayerCache(*(torch.empty(shape, dtype=torch.bfloat16, device=device).normal_() for _ in range(2)))
    query = torch.randn(batch, heads, _HEAD_DIM, device=device).to(torch.bfloat16)
    step, rule = _decode_step(blocks, context), AttentionRule(scale=_HEAD_DIM**-0.5)
    return lambda: paged_attention(query, cache, step, rule)


def _decode_step(blocks: Tensor, context: int) -> PagedStep:
    """Return a decode of one token after `context` − 1 others in every row of blocks."""
    batch, device, last = blocks.shape[0], blocks.device, context - 1
    return PagedStep(
        block_tables=blocks,
        query_start=torch.arange(batch + 1, dtype=torch.int32, device=device),
        context_lens=torch.full((batch,), context, dtype=torch.int32, device=device),
        slots=blocks[:, last // BLOCK_SIZE].long() * BLOCK_SIZE + last % BLOCK_SIZE,
        positions=torch.full((batch,), last, device=device),
        max_query_len=1,
        max_context_len=context,
    )


def _blocks(batch: int, context: int, device: torch.device) -> Tensor:
    """Assign every block but the null block to the sequences in random order: `[batch, blocks]` int32."""
    each = -(-context // BLOCK_SIZE)
    order = torch.randperm(batch * each, generator=torch.Generator().manual_seed(0))
    return (1 + order.to(torch.int32)).view(batch, each).to(device)
