"""Measure the engine's decode step: its duration, and how long the device waits for the host."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from engine.loop.core import Engine
from lab.gpu.engines import BLOCK_SIZE, add_asks, asks_of, make_engine, settings_text
from lab.gpu.parts import GB
from lab.gpu.roofline import decode_step_bytes, figures_of, idle_share
from lab.gpu.scale import Load, Scale
from lab.gpu.sections import Row
from lab.gpu.timing import release_memory

_UNCOUNTED_STEPS = 3

_MODES: dict[str, dict[str, bool]] = {
    "kernel by kernel": {"enforce_eager": True, "overlap": False},
    "as graphs": {"enforce_eager": False, "overlap": False},
    "as graphs, overlapping": {"enforce_eager": False, "overlap": True},
}


def measure_decode_step(scale: Scale, device: torch.device) -> list[Row]:
    """Measure steps of the whole engine, including scheduling and sampling, against the memory's bandwidth."""
    engine = _decoding_engine(scale, device)
    contexts, seconds = [], []
    for _ in range(scale.num_steps):
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
        contexts.append(float(engine.scheduler.last_plan.starts.mean()) + 1)
    context, median = statistics.mean(contexts), statistics.median(seconds)
    read = decode_step_bytes(figures_of(scale.llama), batch=scale.step_batch, context=context)
    ideal = scale.limits.bytes_per_second
    return [
        Row(
            what=f"decode step, batch {scale.step_batch}, context {context:.0f}",
            measured=read / median / GB,
            unit="GB/s",
            ideal=ideal / GB,
            settings=settings_text(engine),
            note=f"median of {len(seconds)} steps {median * 1e3:.2f} ms, ideal {read / ideal * 1e3:.2f} ms; "
            f"{scale.step_batch / median:,.0f} tok/s",
        )
    ]


def measure_idle(scale: Scale, device: torch.device) -> list[Row]:
    """Measure the share of decode steps in which no kernel and no copy runs, without and with graphs and overlap.

    Without CUDA, torch's operators on the host are measured instead, which only shows that the measurement runs.
    """
    rows = []
    for name, mode in _MODES.items():
        rows.append(_idle_row(_decoding_engine(scale, device, **mode), scale, device, name))
        release_memory()
    return rows


def _idle_row(engine: Engine, scale: Scale, device: torch.device, name: str) -> Row:
    seconds = _step_seconds(engine, scale.num_steps)
    on_device = device.type == "cuda"
    # Both kinds on a GPU: with the device's alone, launches are not tied to kernels and some releases record nothing.
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_device else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        for _ in range(scale.num_steps):
            engine.step()
    device_type = "CUDA" if on_device else "CPU"
    intervals = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or []
        if event.device_type.name == device_type
    ]
    share = idle_share(intervals)
    return Row(
        what=f"device busy in decode steps, {name}",
        measured=100 * (1 - share),
        unit="%",
        settings=settings_text(engine),
        note=f"idle {share:.1%} over {scale.num_steps} steps, {len(intervals) / scale.num_steps:.0f} kernels and "
        "copies a step; the profiler slows the host: without it a step takes "
        f"{statistics.median(seconds) * 1e3:.2f} ms",
    )


def _step_seconds(engine: Engine, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def _decoding_engine(scale: Scale, device: torch.device, **settings: Any) -> Engine:
    """Return an engine whose whole batch is past its prompts, near the given context, and cannot end soon.

    Its pool holds every sequence at its maximum length.
    """
    num_steps = 2 * scale.num_steps + _UNCOUNTED_STEPS
    budget = 32 * scale.step_batch
    prefill_steps = -(-scale.step_batch * scale.step_context // budget)
    # Early sequences generate while later ones compute their prompts.
    prompt = max(1, scale.step_context - num_steps // 2 - prefill_steps // 2)
    max_tokens = 2 * (prefill_steps + num_steps)
    load = Load(
        count=scale.step_batch,
        prompt=(prompt, prompt),
        output=(max_tokens, max_tokens),
        max_num_seqs=scale.step_batch,
        max_num_batched_tokens=budget,
    )
    max_model_len = prompt + max_tokens
    engine = make_engine(
        scale.llama,
        device=str(device),
        max_num_seqs=load.max_num_seqs,
        max_num_batched_tokens=load.max_num_batched_tokens,
        max_model_len=max_model_len,
        num_kv_blocks=scale.step_batch * (-(-max_model_len // BLOCK_SIZE) + 1),
        **settings,
    )
    add_asks(engine, asks_of(load, vocab_size=scale.llama.vocab_size), first_id=0)
    num_decodes = 0
    while num_decodes < _UNCOUNTED_STEPS:
        engine.step()
        plan = engine.scheduler.last_plan
        num_decodes += len(plan.counts) == scale.step_batch and plan.counts.max() == 1
        if not engine.has_work:
            raise RuntimeError("The requests ended before all of them decoded together.")
    return engine
