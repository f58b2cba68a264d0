"""Run whole loads: against the roofline, against transformers, and continuous against static batches."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.static_batching import Batching
from lab.gpu.engines import Ask, Run, asks_of, make_engine, model_directory, run_asks, settings_text, work
from lab.gpu.roofline import figures_of, ideal_batch, ideal_seconds, ideal_tokens_per_second, pool_batch
from lab.gpu.scale import HeavyLoad, Load, Scale
from lab.gpu.sections import Row
from lab.gpu.timing import release_memory
from lab.make_model import OptShape, Shape

_NO_EOS = -1
_MOST_SECONDS = 180.0
"""Timeout of transformers, whose speed here is unknown: later sections must still be measured."""


def measure_load(
    scale: Scale,
    device: torch.device,
    *,
    shape: Shape,
    load: Load,
) -> list[Row]:
    """Run a load to the end and compare its output tokens per second with the roofline of the same requests."""
    asks = asks_of(load, vocab_size=shape.vocab_size)
    run, settings = _run(shape, asks, device, load=load)
    model, sums = figures_of(shape), work(asks)
    ideal = ideal_tokens_per_second(model, sums, limits=scale.limits, max_num_seqs=load.max_num_seqs)
    batch = ideal_batch(model, sums, limits=scale.limits, max_num_seqs=load.max_num_seqs)
    most = pool_batch(model, sums, limits=scale.limits)
    full = sums.output_tokens / ideal_seconds(model, sums, limits=scale.limits, batch=most)
    return [
        Row(
            what=_name(load),
            measured=run.tokens_per_second,
            unit="tok/s",
            ideal=ideal,
            settings=settings,
            note=f"{run.output_tokens} tokens in {run.seconds:.1f} s, mean batch {run.stats.scheduler.mean_batch:.0f} "
            f"(the ideal's {batch:.0f}), {run.stats.scheduler.num_preemptions} preemptions; with as many requests as "
            f"fit in memory the ideal would be {full:,.0f} tok/s, of which this is {run.tokens_per_second / full:.1%}",
        )
    ]


def measure_against_transformers(scale: Scale, device: torch.device, *, load: Load) -> list[Row]:
    """Run the same requests through our engine and then through transformers' continuous batching."""
    asks = asks_of(load, vocab_size=scale.llama.vocab_size)
    ours, settings = _run(scale.llama, asks, device, load=load)
    release_memory()
    theirs, their_settings = _run_transformers(scale.llama, asks, device, load=load)
    rate = sum(ask.max_tokens for ask in asks) / theirs
    return [
        Row(
            what=f"ours / transformers, {_name(load)}",
            measured=ours.tokens_per_second / rate,
            unit="x",
            settings=f"ours: {settings}; transformers: {their_settings}",
            note=f"ours {ours.tokens_per_second:,.0f} tok/s in {ours.seconds:.1f} s, transformers {rate:,.0f} tok/s "
            f"in {theirs:.1f} s",
        )
    ]


def measure_static(device: torch.device, *, shape: Shape | OptShape, load: HeavyLoad) -> list[Row]:
    """Run heavy-tailed requests with continuous and then with static batches of the same size."""
    asks = asks_of(load, vocab_size=shape.vocab_size)
    runs = {}
    for batching in (Batching.CONTINUOUS, Batching.STATIC):
        engine = make_engine(
            shape,
            device=str(device),
            max_num_seqs=load.max_num_seqs,
            max_num_batched_tokens=load.max_num_batched_tokens,
            max_model_len=load.prompt[1] + load.output[1],
            batching=batching,
        )
        runs[batching] = run_asks(engine, asks)
        settings = settings_text(engine)
        del engine
        release_memory()
    continuous, static = runs[Batching.CONTINUOUS], runs[Batching.STATIC]
    return [
        Row(
            what=f"continuous / static, {load.count} requests, outputs Pareto(1) in {load.output[0]} to "
            f"{load.output[1]}",
            measured=continuous.tokens_per_second / static.tokens_per_second,
            unit="x",
            settings=f"{settings}, and continuous",
            note=f"continuous {_speed(continuous)}, static {_speed(static)}",
        )
    ]


def _run(shape: Shape, asks: list[Ask], device: torch.device, *, load: Load) -> tuple[Run, str]:
    engine = make_engine(
        shape,
        device=str(device),
        max_num_seqs=load.max_num_seqs,
        max_num_batched_tokens=load.max_num_batched_tokens,
        max_model_len=load.prompt[1] + load.output[1],
    )
    return run_asks(engine, asks), settings_text(engine)


def _run_transformers(shape: Shape, asks: list[Ask], device: torch.device, *, load: Load) -> tuple[float, str]:
    """Return the seconds from the submission of all requests to the last token, after a warm-up."""
    from transformers import (  # noqa: PLC0415 - a slow import that the other sections do not need
        AutoConfig,
        AutoModelForCausalLM,
        ContinuousBatchingConfig,
        GenerationConfig,
    )

    from lab.peers.adapters.transformers_continuous import generate  # noqa: PLC0415 - needs transformers

    with model_directory(shape) as path, device:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa", trust_remote_code=False
        ).eval()
    settings = {"max_requests_per_batch": load.max_num_seqs}
    if device.type == "cpu":  # on a GPU it derives these two from the device's memory
        settings |= {"num_blocks": 2 * load.max_num_seqs, "max_batch_tokens": load.max_num_batched_tokens}
    longest = load.output[1]
    requests = [asdict(ask) for ask in asks]
    warm_up = [
        {"prompt_token_ids": ask.prompt_token_ids[::-1], "max_tokens": min(ask.max_tokens, 4)}
        for ask in asks[: load.max_num_seqs]
    ]
    with model.continuous_batching_context_manager(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=_NO_EOS, max_new_tokens=longest),
        continuous_batching_config=ContinuousBatchingConfig(**settings),
    ) as manager:
        generate(manager, warm_up, prefix="warm-up")
        began = time.perf_counter()
        outputs = generate(manager, requests, prefix="request", most_seconds=_MOST_SECONDS)
        seconds = time.perf_counter() - began
    if [len(output) for output in outputs] != [ask.max_tokens for ask in asks]:
        raise RuntimeError("transformers returned a different number of tokens than requested.")
    text = ", ".join(f"{name} {value}" for name, value in settings.items())
    return seconds, f"{model.config._attn_implementation}, {text}"


def _name(load: Load) -> str:
    prompt, output = (f"{low}" if low == high else f"U({low},{high})" for low, high in (load.prompt, load.output))
    return f"{prompt} in, {output} out, {load.count} requests"


def _speed(run: Run) -> str:
    return f"{run.tokens_per_second:,.0f} tok/s in {run.seconds:.1f} s, mean batch {run.stats.scheduler.mean_batch:.1f}"
