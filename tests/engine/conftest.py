"""Fakes and builders that the engine's tests share: sequences without a model, tiny models on disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from engine.blocks import BlockPool, sha256_digest
from engine.config import Admission, Batching
from engine.params import SamplingParams
from engine.request import Request, Sequence
from engine.scheduler import Scheduler, SchedulerLimits


@dataclass
class SimulatedEngine:
    """The real scheduler and blocks with a pure function of the tokens in place of the model."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_model_len: int = 512
    enable_prefix_caching: bool = True
    batching: Batching = Batching.CONTINUOUS
    admission: Admission = Admission.PEAK
    digest: Callable[[bytes], bytes] = sha256_digest
    finished: dict[int, list[Sequence]] = field(default_factory=dict)
    _arrivals: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        pool = BlockPool(self.num_blocks, self.block_size, digest=self.digest)
        limits = SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
        )
        self.scheduler = Scheduler(
            pool,
            limits,
            enable_prefix_caching=self.enable_prefix_caching,
            batching=self.batching,
            admission=self.admission,
        )

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        n: int = 1,
        priority: int = 0,
        deadline: float | None = None,
        salt: str = "",
        stop_token_ids: tuple[int, ...] = (),
    ) -> int:
        arrival = next(self._arrivals)
        request = Request(
            request_id=arrival,
            prompt_token_ids=prompt,
            params=SamplingParams(n=n, ignore_eos=True, stop_token_ids=stop_token_ids, max_tokens=max_tokens),
            max_tokens=max_tokens,
            seed=0,
            eos_token_ids=frozenset(),
            arrival=arrival,
            priority=priority,
            deadline=deadline,
            salt=salt,
        )
        pool = self.scheduler.pool
        self.scheduler.add([Sequence(request, index, pool.chain(salt)) for index in range(n)])
        return arrival

    def step(self) -> list[tuple[Sequence, int]]:
        """Run one step; return who computed how many tokens."""
        plan = self.scheduler.schedule()
        assert sum(plan.counts) + len(plan.padding) <= self.max_num_batched_tokens
        self.scheduler.advance(plan)
        for sequence, samples in zip(plan.sequences, plan.samples, strict=True):
            if samples and sequence.append(next_token(sequence.token_ids)):
                self.scheduler.finish(sequence)
                self.finished.setdefault(sequence.request.request_id, []).append(sequence)
        return list(zip(plan.sequences, plan.counts, strict=True))

    def run(self, max_steps: int = 10_000) -> int:
        """Run until nothing is left; return the number of steps."""
        for step in range(max_steps):
            if not self.scheduler.has_work:
                return step
            assert self.step(), "an empty step while there is work"
            self.scheduler.check_integrity()
        raise AssertionError(f"not done after {max_steps} steps")


def next_token(token_ids: list[int]) -> int:
    """Stand in for the model: a token that depends on every token before it."""
    return sum((place + 1) * token for place, token in enumerate(token_ids)) % 97


def expected_output(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@pytest.fixture(name="simulated")
def _simulated() -> type[SimulatedEngine]:
    return SimulatedEngine
