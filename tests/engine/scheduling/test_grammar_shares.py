"""Tests that a tenant's grammars cost that tenant: it gets a share of the steps' time, and pays for it in turns."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from engine.config import Admission, PolicyName
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from tests.engine.simulated_engine import SimulatedEngine, expected_output


@dataclass
class CostlyEngine(SimulatedEngine):
    """A step takes a second, and a row of a tenant with grammars as long as `costs` says; `clock_runs` or stands."""

    num_blocks: int = 2001
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    costs: dict[str, float] = field(default_factory=dict)
    clock_runs: bool = True
    started: Counter[str] = field(default_factory=Counter)
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: Counter[str] = field(default_factory=Counter)

    def crowd(self, tenant: str, count: int, max_tokens: int = 400, **asked: Any) -> list[int]:
        request_ids = [self.add([index, 5, 6], max_tokens, tenant=tenant, **asked) for index in range(count)]
        for request_id in request_ids:
            for sequence in self.scheduler._roster.unfinished(request_id) if tenant in self.costs else ():
                sequence.matcher = cast("Any", object())
        return request_ids

    def step(self) -> list[tuple[Sequence, int]]:
        before = set(self.scheduler.running_sequences())
        self._loop.step()
        self.started.update(one.request.tenant for one in set(self.scheduler.running_sequences()) - before)
        plan = self.scheduler.last_plan
        return list(zip(plan.sequences, plan.counts.tolist(), strict=True))

    def steps(self, count: int) -> None:
        for _ in range(count):
            assert self.step(), "an empty step while there is work"
            self.scheduler.check_integrity()

    def start(self, plan: StepPlan, pending: StepPlan | None) -> None:
        self.now += self.clock_runs

    def draw(self, plan: StepPlan, started: None, rows: list[int] | None) -> StepPlan | None:
        for sequence, _ in plan.sampling():
            tenant = sequence.request.tenant
            self.tokens[tenant] += 1
            if sequence.matcher is not None:
                plan.grammar_seconds[sequence] = self.costs[tenant]
                self.spent[tenant] += self.costs[tenant]
                self.now += self.costs[tenant] * self.clock_runs
        return super().draw(plan, started, rows)

    def seconds_of(self, num_steps: int) -> float:
        before = self.now
        self.steps(num_steps)
        return self.now - before


def rows_of(engine: SimulatedEngine) -> Counter[str]:
    return Counter(sequence.request.tenant for sequence in engine.scheduler.last_plan.sequences)


def test_a_tenant_beside_costly_grammars_has_half_of_the_time() -> None:
    engine = CostlyEngine(costs={"costly": 1.5})
    engine.crowd("costly", 8)
    engine.steps(3)
    engine.crowd("plain", 8)
    engine.steps(1)  # who comes waits for the step that runs
    assert engine.seconds_of(100) == pytest.approx(200, abs=3)
    assert rows_of(engine)["plain"] == 8
    assert engine.spent["costly"] == pytest.approx(4 * 8 * 1.5 + 100, abs=3)


def test_with_more_weight_grammars_have_more_time() -> None:
    engine = CostlyEngine(costs={"costly": 1.5})
    engine.crowd("costly", 8, weight=3.0)
    engine.crowd("plain", 8)
    engine.steps(2)
    assert engine.seconds_of(100) == pytest.approx(400, abs=8)


def test_grammars_of_a_tenant_alone_have_no_bound() -> None:
    engine = CostlyEngine(costs={"costly": 1.5})
    engine.crowd("costly", 8, max_tokens=30)
    engine.steps(29)
    assert engine.tokens == {"costly": 29 * 8}


def test_cheap_grammars_sit_nothing_out() -> None:
    engine = CostlyEngine(costs={"cheap": 0.01})
    engine.crowd("cheap", 8)
    engine.crowd("plain", 8)
    engine.steps(20)
    assert engine.tokens == {"cheap": 20 * 8, "plain": 20 * 8}


def test_costly_grammars_go_on_and_take_all_steps_once_they_are_alone() -> None:
    engine = CostlyEngine(costs={"costly": 1.5})
    engine.crowd("costly", 8)
    engine.crowd("plain", 8, max_tokens=30)
    engine.steps(29)
    assert engine.tokens["costly"] > 8
    engine.steps(5)
    assert rows_of(engine) == {"costly": 8}


def test_tenants_of_costly_grammars_share_the_time_and_no_step_is_empty() -> None:
    engine = CostlyEngine(costs={"one": 2.0, "two": 0.7})
    engine.crowd("one", 8)
    engine.crowd("two", 8)
    engine.steps(300)
    assert engine.spent["one"] <= 300 + engine.spent["two"] + 8 * 2.0
    assert engine.spent["two"] <= 300 + engine.spent["one"] + 8 * 0.7


def test_urgent_grammars_wait_for_no_work_that_is_less_urgent() -> None:
    engine = CostlyEngine(costs={"urgent": 1.5})
    engine.crowd("urgent", 4, priority=0)
    engine.crowd("bulk", 4, priority=1)
    engine.steps(10)
    assert engine.tokens["urgent"] == 40


def test_policies_without_turns_let_nobody_sit_out() -> None:
    engine = CostlyEngine(costs={"costly": 1.5}, policy=PolicyName.FCFS)
    engine.crowd("costly", 4)
    engine.crowd("plain", 4)
    engine.steps(10)
    assert engine.tokens == {"costly": 40, "plain": 40}


@pytest.mark.parametrize("policy", [PolicyName.PRIORITY, PolicyName.FAIR])
def test_the_time_of_grammars_counts_as_tokens_in_the_turns(policy: PolicyName) -> None:
    engine = CostlyEngine(costs={"costly": 1.5}, policy=policy)
    for tenant in ("costly", "plain"):
        engine.crowd(tenant, 300, max_tokens=8)
    engine.steps(150)
    assert engine.started["plain"] > 1.5 * engine.started["costly"]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("clock_runs", [False, True])
@pytest.mark.parametrize("num_blocks", [24, 2001])
def test_whoever_sits_steps_out_gets_the_same_tokens(*, overlap: bool, clock_runs: bool, num_blocks: int) -> None:
    """Also where blocks run out, and where a clock stands still, so that nothing is ever paid back."""
    engine = CostlyEngine(costs={"costly": 1.5}, overlap=overlap, clock_runs=clock_runs, num_blocks=num_blocks)
    request_ids = [*engine.crowd("costly", 6, max_tokens=20), *engine.crowd("plain", 6, max_tokens=30)]
    while engine.scheduler.has_work:
        engine.step()
        engine.scheduler.check_integrity()
    for index, request_id in enumerate(request_ids):
        [sequence] = engine.finished[request_id]
        prompt = [index % 6, 5, 6]
        assert sequence.token_ids[3:] == expected_output(prompt, 20 if index < 6 else 30)


@pytest.mark.parametrize("num_blocks", range(16, 24))
def test_no_step_is_empty_where_those_at_rest_have_the_last_blocks(num_blocks: int) -> None:
    engine = CostlyEngine(costs={"costly": 1.5}, num_blocks=num_blocks, admission=Admission.PROMPT)
    engine.crowd("costly", 2, max_tokens=36)
    engine.steps(2)
    engine.crowd("plain", 1, max_tokens=40)
    while engine.scheduler.has_work:
        engine.steps(1)


def test_one_odd_measurement_does_not_last() -> None:
    engine = CostlyEngine(costs={"costly": 3600.0})
    engine.crowd("costly", 1)
    engine.crowd("plain", 1)
    engine.steps(1)
    engine.costs["costly"] = 0.01
    engine.steps(4)
    assert rows_of(engine) == {"costly": 1, "plain": 1}
