"""The real scheduler with a pure function of the tokens instead of a model: the decisions of steps, without tensors."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from engine.config import Admission, PolicyName, SchedulerConfig
from engine.loop.step_loop import StepLoop
from engine.params import SamplingParams
from engine.scheduling.blocks import BlockPool, sha256_digest
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request, Sequence
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.swap import SwapSpace


@dataclass
class SimulatedEngine:
    """The real scheduler and blocks with a pure function of the tokens in place of the model."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 32
    max_model_len: int = 512
    enable_prefix_caching: bool = True
    scheduler_type: type[Scheduler] = Scheduler
    admission: Admission = Admission.PEAK
    policy: PolicyName = PolicyName.PRIORITY
    max_passed_over: int = 64
    swap: SwapSpace | None = None
    overlap: bool = False
    digest: Callable[[bytes], bytes] = sha256_digest
    watch: Callable[[StepPlan], None] | None = None
    now: float = 0.0
    finished: dict[int, list[Sequence]] = field(default_factory=dict)
    _arrivals: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        pool = BlockPool(self.num_blocks, self.block_size, digest=self.digest)
        config = SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            enable_prefix_caching=self.enable_prefix_caching,
            admission=self.admission,
            policy=self.policy,
            max_passed_over=self.max_passed_over,
        )
        self.scheduler = self.scheduler_type(pool, config, swap=self.swap, clock=lambda: self.now)
        self._loop = StepLoop(self.scheduler, self, overlaps=self.overlap)

    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        n: int = 1,
        priority: int = 0,
        deadline: float | None = None,
        tenant: str = "",
        weight: float = 1.0,
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
            tenant=tenant,
            weight=weight,
        )
        pool = self.scheduler.pool
        self.scheduler.add([Sequence(request, index, pool.chain(tenant)) for index in range(n)])
        return arrival

    def step(self) -> list[tuple[Sequence, int]]:
        """Run one step, which takes a second; return who computed how many tokens, or whose last token came."""
        began = self.now
        ended = self._loop.step()
        self.now = began + 1.0
        plan = self.scheduler.last_plan
        return list(zip(plan.sequences, plan.counts.tolist(), strict=True)) or [
            (sequence, 0) for sequence in ended or ()
        ]

    def start(self, plan: StepPlan, pending: StepPlan | None) -> None:
        if self.watch is not None:
            self.watch(plan)
        self.now += 1.0
        assert sum(plan.counts) <= self.max_num_batched_tokens

    def draw(self, plan: StepPlan, started: None, rows: list[int] | None) -> StepPlan | None:
        return plan if plan.num_sampled.any() else None

    def record(self, plan: StepPlan, drawn: StepPlan | None) -> list[Sequence]:
        """Append what the plan samples; return who ends with it."""
        alive = [sequence for sequence, _ in plan.sampling() if sequence in self.scheduler]
        return [sequence for sequence in alive if sequence.append(next_token(sequence.token_ids)) is not None]

    def finish(self, taken: list[Sequence]) -> list[Sequence]:
        for sequence in taken:
            self.scheduler.finish(sequence)
            self.finished.setdefault(sequence.request.request_id, []).append(sequence)
        return taken

    def run(self, max_steps: int = 10_000) -> int:
        """Run until nothing is left; return the number of steps."""
        for step in range(max_steps):
            if not self.scheduler.has_work:
                return step
            assert self.step(), "an empty step while there is work"
            self.scheduler.check_integrity()
        raise AssertionError(f"not done after {max_steps} steps")


def mixed_work(count: int, *, seed: int) -> list[tuple[list[int], int]]:
    """Return prompts of 1 to 40 tokens, each with how many tokens to generate."""
    rng = random.Random(seed)
    return [([rng.randrange(97) for _ in range(rng.randint(1, 40))], rng.randint(1, 30)) for _ in range(count)]


def next_token(token_ids: list[int]) -> int:
    """Stand in for the model: a token that depends on every token before it."""
    return sum((index + 1) * token for index, token in enumerate(token_ids)) % 97


def expected_output(prompt: list[int], max_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]
