from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import Admission, PolicyName
from engine.scheduling.decisions import Reason
from engine.scheduling.request import Sequence
from tests.engine.simulated_engine import SimulatedEngine, expected_output


class SchedulerMachine(RuleBasedStateMachine):
    """Random adds, steps, aborts, preemptions and ends on a small pool; the invariants hold after each."""

    @initialize(
        num_blocks=st.integers(12, 40),
        budget=st.integers(6, 40),
        caching=st.booleans(),
        admission=st.sampled_from(Admission),
        policy=st.sampled_from(PolicyName),
        max_passed_over=st.integers(1, 6),
        overlap=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        budget: int,
        caching: bool,
        admission: Admission,
        policy: PolicyName,
        max_passed_over: int,
        overlap: bool,
    ) -> None:
        self.engine = SimulatedEngine(
            num_blocks=num_blocks,
            max_num_seqs=6,
            max_num_batched_tokens=budget,
            enable_prefix_caching=caching,
            admission=admission,
            policy=policy,
            max_passed_over=max_passed_over,
            overlap=overlap,
        )
        self.asked: dict[int, tuple[list[int], int]] = {}
        self.aborted: set[int] = set()
        self.ended_early: set[Sequence] = set()

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=24),
        max_tokens=st.integers(1, 20),
        n=st.integers(1, 3),
        priority=st.integers(0, 2),
        seconds_left=st.none() | st.integers(0, 80),
        has_stop=st.booleans(),
        tenant=st.sampled_from(["", "other", "third"]),
    )
    def add(
        self,
        *,
        prompt: list[int],
        max_tokens: int,
        n: int,
        priority: int,
        seconds_left: int | None,
        has_stop: bool,
        tenant: str,
    ) -> None:
        if self.engine.scheduler.can_ever_hold(len(prompt) + max_tokens - 1):
            # A stop token that never comes makes the length unknown to the forecast.
            stop = (1000,) if has_stop else ()
            deadline = None if seconds_left is None else self.engine.now + seconds_left
            request_id = self.engine.add(
                prompt, max_tokens, n=n, priority=priority, deadline=deadline, tenant=tenant, stop_token_ids=stop
            )
            self.asked[request_id] = (prompt, max_tokens)

    @precondition(lambda self: self.engine.scheduler.has_work)
    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.engine.scheduler.has_work:
                assert self.engine.step()

    @precondition(lambda self: self.asked)
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick: int) -> None:
        request_id = sorted(self.asked)[pick % len(self.asked)]
        if self.engine.scheduler.abort(request_id):
            self.aborted.add(request_id)

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 1000))
    def preempt(self, pick: int) -> None:
        # Stands for a lack of blocks that hits any of them, not only the one that is ranked last.
        running = self.running()
        self.engine.scheduler._roster.preempt(running[pick % len(running)], Reason.PREEMPTED_FOR_BLOCKS, running[0])

    @precondition(lambda self: self.running())
    @rule(pick=st.integers(0, 1000))
    def end_early(self, pick: int) -> None:
        running = self.running()
        sequence = running[pick % len(running)]
        self.engine.scheduler.finish(sequence)
        self.engine.finished.setdefault(sequence.request.request_id, []).append(sequence)
        self.ended_early.add(sequence)

    def running(self) -> list[Sequence]:
        return list(self.engine.scheduler.running_sequences())

    @invariant()
    def everything_adds_up(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        assert self.engine.scheduler.pool.num_used == 0
        for request_id, (prompt, max_tokens) in self.asked.items():
            for sequence in self.engine.finished.get(request_id, []):
                output, expected = sequence.token_ids[len(prompt) :], expected_output(prompt, max_tokens)
                assert output == (expected[: len(output)] if sequence in self.ended_early else expected)
            assert request_id in self.aborted or request_id in self.engine.finished


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
