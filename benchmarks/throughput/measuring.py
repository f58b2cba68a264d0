"""Replay a workload: through our engine in real time, or through transformers in padded batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.static_batching import Batching, load_engine
from benchmarks.throughput.report import ThroughputReport, make_report
from benchmarks.workload import WorkloadRequest
from engine.config import EngineConfig
from engine.loop.core import Engine
from engine.outputs import FinishReason
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from engine.structured import StructuredOutput


class _Stopwatch:
    """Measures wall and CPU seconds since its creation."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    @property
    def wall_seconds(self) -> float:
        return time.perf_counter() - self._wall

    def both(self) -> dict[str, float]:
        return {"wall_seconds": self.wall_seconds, "cpu_seconds": time.process_time() - self._cpu}


def measure_engine(
    config: EngineConfig, requests: list[WorkloadRequest], *, batching: Batching = Batching.CONTINUOUS
) -> ThroughputReport:
    """Load the model, replay the workload in real time, and report; loading and warm-up are not counted."""
    engine = load_engine(config, batching)
    watch = _Stopwatch()
    num_added = 0
    errors: dict[int, str] = {}  # of failed requests, in the order of failure
    while num_added < len(requests) or engine.has_work:
        now = watch.wall_seconds
        while num_added < len(requests) and requests[num_added].arrival_seconds <= now:
            _add(engine, num_added, requests[num_added])
            num_added += 1
        if engine.has_work:
            errors |= {
                delta.request_id: delta.error or "it failed"
                for delta in engine.step()
                if delta.finish_reason is FinishReason.ERROR
            }
        else:
            time.sleep(max(0.0, requests[num_added].arrival_seconds - now))
    return make_report(f"{batching}-{config.max_num_seqs}", requests, errors, times=watch.both(), stats=engine.stats())


def measure_transformers(
    model: str, requests: list[WorkloadRequest], *, batch_size: int, dtype: str
) -> ThroughputReport:
    """Run transformers' `generate` over padded batches in order; each batch waits for its longest request."""
    import torch  # noqa: PLC0415 - only the comparison needs these two
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), trust_remote_code=False
    ).eval()
    batches = [requests[index : index + batch_size] for index in range(0, len(requests), batch_size)]
    with torch.inference_mode():
        generate_padded(loaded, [_short(request) for request in batches[0][:2]])
        watch = _Stopwatch()
        for batch in batches:
            generate_padded(loaded, batch)
    return make_report(f"transformers-{batch_size}", requests, {}, times=watch.both(), stats=None)


def generate_padded(model: Any, batch: list[WorkloadRequest]) -> list[list[int]]:
    """Return the new tokens of each request, generated to the length of the longest."""
    import torch  # noqa: PLC0415

    width = max(len(request.prompt_token_ids) for request in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(batch):  # generation continues at the right end, so the padding is on the left
        ids[row, width - len(request.prompt_token_ids) :] = torch.tensor(request.prompt_token_ids)
        mask[row, width - len(request.prompt_token_ids) :] = 1
    longest = max(request.max_tokens for request in batch)
    rows = model.generate(
        ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest, do_sample=False, pad_token_id=0
    )
    new: list[list[int]] = rows[:, width:].tolist()
    return new


def compare(
    config: EngineConfig,
    requests: list[WorkloadRequest],
    *,
    static_batch_sizes: list[int],
    transformers_batch_sizes: list[int],
) -> Iterator[ThroughputReport]:
    """Measure, in one run, continuous batching, the static mode at the same limit and other sizes, and transformers."""
    yield measure_engine(config, requests)
    for size in dict.fromkeys([config.max_num_seqs, *static_batch_sizes]):
        yield measure_engine(replace(config, max_num_seqs=size), requests, batching=Batching.STATIC)
    dtype = "bfloat16" if config.dtype == "auto" else config.dtype
    for size in transformers_batch_sizes:
        yield measure_transformers(config.model, requests, batch_size=size, dtype=dtype)


def _add(engine: Engine, request_id: int, request: WorkloadRequest) -> None:
    schema = request.json_schema
    params = SamplingParams(
        temperature=0.0,
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos,
        structured=None if schema is None else StructuredOutput(json=schema),
    )
    engine.add(NewRequest(request_id=request_id, prompt_token_ids=request.prompt_token_ids, params=params))


def _short(request: WorkloadRequest) -> WorkloadRequest:
    return WorkloadRequest(
        prompt_token_ids=request.prompt_token_ids[:8], max_tokens=2, ignore_eos=True, arrival_seconds=0.0
    )
