"""Engines with random weights, and their loads."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.static_batching import Batching, batching_of, load_engine
from engine.config import EngineConfig, LoadFormat
from engine.loop.core import Engine
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from engine.stats import EngineStats
from lab.gpu.roofline import Work, work_of
from lab.gpu.scale import HeavyLoad, Load
from lab.make_model import OptShape, Shape, write_config
from lab.make_workload import Lengths, random_requests

BLOCK_SIZE = 16
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request; as a dictionary, the peers' adapters read it too."""

    prompt_token_ids: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Measurements of a load, from the submission of all requests to the last token."""

    seconds: float
    output_tokens: int
    stats: EngineStats

    @property
    def tokens_per_second(self) -> float:
        """Return output tokens per second."""
        return self.output_tokens / self.seconds


@contextmanager
def model_directory(shape: Shape | OptShape) -> Iterator[Path]:
    """Yield a directory with a config.json of this shape and no weights."""
    with TemporaryDirectory(prefix="tokenmill-bench-") as path:
        yield write_config(Path(path), shape)


def make_engine(shape: Shape | OptShape, *, batching: Batching = Batching.CONTINUOUS, **settings: Any) -> Engine:
    """Load an engine with weights made on the device; `settings` are those of EngineConfig."""
    with model_directory(shape) as path:
        config = EngineConfig(model=str(path), load_format=LoadFormat.RANDOM, block_size=BLOCK_SIZE, **settings)
        return load_engine(config, batching)


def asks_of(load: Load | HeavyLoad, *, vocab_size: int, seed: int = 0) -> list[Ask]:
    """Return a load's requests; the same seed gives the same requests."""
    if isinstance(load, HeavyLoad):
        lengths = Lengths(num_requests=load.count, prompt_tokens=load.prompt, output_tokens=load.output)
        bodies = random_requests(lengths, vocab_size=vocab_size, seed=seed)
        return [Ask(prompt_token_ids=body["prompt_token_ids"], max_tokens=body["max_tokens"]) for body in bodies]
    generator = random.Random(seed)
    return [
        Ask(
            prompt_token_ids=generator.choices(range(vocab_size), k=generator.randint(*load.prompt)),
            max_tokens=generator.randint(*load.output),
        )
        for _ in range(load.count)
    ]


def work(asks: list[Ask]) -> Work:
    """Sum up requests for the roofline."""
    return work_of((len(ask.prompt_token_ids), ask.max_tokens) for ask in asks)


def run_asks(engine: Engine, asks: list[Ask]) -> Run:
    """Warm up, submit all requests and run them to the end. Raises RuntimeError if a token is missing.

    The warm-up is a batch of the same prompts reversed, as many as run together, for a few tokens each: kernels are
    compiled and memory is allocated for steps of these sizes, but the prefix cache gets no hits from it.
    """
    warm_up = [
        Ask(prompt_token_ids=ask.prompt_token_ids[::-1], max_tokens=min(ask.max_tokens, _WARM_UP_TOKENS))
        for ask in asks[: min(len(asks), engine.config.scheduler.max_num_seqs, 64)]
    ]
    _run_all(engine, warm_up, first_id=len(asks))
    before = engine.stats().requests.num_output_tokens
    began = time.perf_counter()
    _run_all(engine, asks, first_id=0)
    seconds = time.perf_counter() - began
    stats = engine.stats()
    output_tokens, expected_tokens = stats.requests.num_output_tokens - before, sum(ask.max_tokens for ask in asks)
    if output_tokens != expected_tokens:
        raise RuntimeError(f"The engine gave {output_tokens} tokens instead of {expected_tokens}.")
    return Run(seconds=seconds, output_tokens=output_tokens, stats=stats)


def add_asks(engine: Engine, asks: list[Ask], *, first_id: int) -> None:
    """Submit greedy requests that run to exactly their length."""
    for number, ask in enumerate(asks, start=first_id):
        params = SamplingParams(temperature=0.0, max_tokens=ask.max_tokens, ignore_eos=True)
        engine.add(NewRequest(request_id=number, prompt_token_ids=ask.prompt_token_ids, params=params))


def settings_text(engine: Engine) -> str:
    """Return the settings that determine the speed of a run."""
    config, limits, info = engine.config, engine.config.scheduler, engine.info
    return (
        f"{info.device} {info.dtype}, max_num_seqs {limits.max_num_seqs}, max_num_batched_tokens "
        f"{limits.max_num_batched_tokens}, {info.num_kv_blocks} KV blocks of {info.block_size} tokens, "
        f"{batching_of(engine)} batching, overlap {'on' if config.overlap else 'off'}, "
        f"enforce_eager {'on' if config.asked.enforce_eager else 'off'}"
    )


def _run_all(engine: Engine, asks: list[Ask], *, first_id: int) -> None:
    add_asks(engine, asks, first_id=first_id)
    while engine.has_work:
        for delta in engine.step():
            if delta.error is not None:
                raise RuntimeError(f"request {delta.request_id}: {delta.error}")
