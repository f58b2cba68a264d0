"""Tests of speculation without a model: proposed drafts, learning from steps, and when it stops."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from engine.config import SchedulerConfig
from engine.loop.step_loop import StepLoop
from engine.params import SamplingParams
from engine.scheduling.blocks import BlockPool
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request, Sequence
from engine.scheduling.scheduler import Scheduler
from engine.speculation.draft_value import Acceptance, Candidate, SpeculationCost, choose_counts
from engine.speculation.lookup_drafter import LookupDrafter
from engine.speculation.prompt_lookup import PromptLookup

_Model = Callable[[list[int]], int]


def copying(token_ids: list[int]) -> int:
    """Go on as 40 tokens ago."""
    return token_ids[-40]


def erratic(token_ids: list[int]) -> int:
    """Take one of eight tokens that its position decides: seen before, and not to be guessed."""
    return random.Random(len(token_ids)).randrange(8)


@dataclass
class FakeClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Simulation:
    """The real scheduler and drafter around a function in place of the model; a step takes `seconds(rows)`."""

    model: _Model
    seconds: Callable[[int], float]
    max_num_seqs: int = 4
    clock: FakeClock = field(default_factory=FakeClock)
    sequences: list[Sequence] = field(default_factory=list)
    num_steps: int = 0
    num_rows: int = 0

    def __post_init__(self) -> None:
        config = SchedulerConfig(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=512, max_model_len=4096)
        self.scheduler = Scheduler(BlockPool(2000, 16), config)
        self.drafter = LookupDrafter(max_drafts=64, min_match=1, max_match=8, clock=self.clock)
        self.loop: StepLoop[None, StepPlan, list[Sequence], None] = StepLoop(self.scheduler, self, drafter=self.drafter)

    def add(self, prompt: list[int], max_tokens: int) -> Sequence:
        request = Request(
            request_id=len(self.sequences),
            prompt_token_ids=prompt,
            params=SamplingParams(ignore_eos=True, max_tokens=max_tokens),
            max_tokens=max_tokens,
            seed=0,
            eos_token_ids=frozenset(),
            arrival=len(self.sequences),
        )
        self.sequences.append(Sequence(request, 0, self.scheduler.pool.chain("")))
        self.scheduler.add(self.sequences[-1:])
        return self.sequences[-1]

    def step(self) -> int:
        """Run one step; return how many drafts were computed."""
        self.loop.step()
        self.scheduler.check_integrity()
        return sum(count - 1 for count in self.scheduler.last_plan.num_sampled.tolist() if count)

    def start(self, plan: StepPlan, pending: object) -> None:
        self.clock.now += self.seconds(int(plan.counts.sum()))
        self.num_steps += 1
        self.num_rows += int(plan.counts.sum())

    def draw(self, plan: StepPlan, started: None, rows: list[int] | None) -> StepPlan:
        return plan

    def record(self, plan: StepPlan, drawn: StepPlan | None) -> list[Sequence]:
        """Append what the plan samples; return who ends with it."""
        for sequence, num_sampled in plan.sampling():
            self._append(sequence, num_sampled)
        return [sequence for sequence in plan.sequences if sequence.num_tokens >= sequence.max_total_tokens]

    def finish(self, taken: list[Sequence]) -> None:
        for sequence in taken:
            self.scheduler.finish(sequence)

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def _append(self, sequence: Sequence, num_sampled: int) -> None:
        """Append up to the first token that its draft did not guess."""
        drafts = sequence.draft_token_ids
        for index in range(num_sampled):
            token_id = self.model(sequence.token_ids)
            sequence.append(token_id)
            if index == len(drafts) or drafts[index] != token_id:
                return


def free_rows(rows: int) -> float:
    return 1.0


def only_rows(rows: int) -> float:
    return float(rows)


def prompt_of(length: int, *, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(length)]


def generated(model: _Model, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(model(tokens))
    return tokens


def test_copied_text_is_drafted_far_ahead_where_rows_are_free() -> None:
    simulation = Simulation(copying, free_rows)
    prompt = prompt_of(50)
    sequence = simulation.add(prompt, 800)
    simulation.run()
    assert sequence.token_ids == generated(copying, prompt, 800)
    counters = simulation.drafter.counters
    assert counters.num_accepted > 700
    assert counters.num_accepted <= counters.num_drafted
    assert simulation.num_steps < 800 // 10


def test_it_switches_off_where_drafts_are_never_right_and_rows_cost_their_full_price() -> None:
    simulation = Simulation(erratic, only_rows)
    prompts = [prompt_of(30, seed=seed) for seed in range(4)]
    for prompt in prompts:
        simulation.add(prompt, 1500)
    simulation.run()
    assert [sequence.token_ids for sequence in simulation.sequences] == [
        generated(erratic, prompt, 1500) for prompt in prompts
    ]
    assert not simulation.drafter.is_on
    assert 0 < simulation.drafter.counters.num_drafted < 0.1 * 4 * 1500


def test_the_waits_between_trials_grow_to_a_limit_and_it_never_stops_trying() -> None:
    simulation = Simulation(erratic, only_rows)
    simulation.add(prompt_of(30), 4000)
    drafted = [index for index in range(3500) if simulation.step()]
    gaps = [after - before for before, after in itertools.pairwise(drafted) if after - before > 20]
    assert gaps == sorted(gaps)
    assert max(gaps) <= 1024 + 64
    assert len(gaps) >= 5


def test_it_switches_on_again_when_drafts_begin_to_pay() -> None:
    simulation = Simulation(erratic, only_rows)
    sequence = simulation.add(prompt_of(50), 4000)
    for _ in range(1000):
        simulation.step()
    assert not simulation.drafter.is_on
    simulation.model, simulation.seconds = copying, free_rows
    before = sequence.num_tokens
    for _ in range(1200):
        if not simulation.scheduler.has_work:
            break
        simulation.step()
    assert not simulation.scheduler.has_work, f"{sequence.num_tokens - before} tokens in 1200 steps"
    assert simulation.drafter.is_on


def test_a_search_that_takes_longer_than_it_saves_is_given_up() -> None:
    simulation = Simulation(copying, free_rows)
    readings = itertools.count()

    def slow_search() -> float:
        if next(readings) % 3 == 1:  # the second reading in each step is the one after the search
            simulation.clock.now += 2.0
        return simulation.clock.now

    simulation.drafter = simulation.loop.drafter = LookupDrafter(
        max_drafts=1, min_match=1, max_match=8, clock=slow_search
    )
    simulation.add(prompt_of(50), 200)
    simulation.run()
    assert simulation.drafter.counters.num_accepted > 0
    assert not simulation.drafter.is_on


def test_text_without_repeats_ends_the_search_for_drafts() -> None:
    simulation = Simulation(len, free_rows)
    simulation.add([5000 + index for index in range(20)], 200)
    simulation.run()
    assert simulation.drafter.counters.num_drafted == 0
    assert not simulation.drafter.is_on


def test_no_more_drafts_than_there_is_room_for_are_proposed() -> None:
    simulation = Simulation(copying, free_rows)
    for seed in range(4):
        simulation.add(prompt_of(50, seed=seed), 2000)
    for _ in range(12):
        simulation.step()
    running = list(simulation.scheduler.running_sequences())
    running[0].draft_token_ids = [1, 2]
    simulation.drafter.propose(running, 7)
    assert running[0].draft_token_ids == [1, 2], "drafts that something else has set stay"
    assert sum(len(sequence.draft_token_ids) for sequence in running) == 7


def test_a_sequence_is_drafted_up_to_the_token_before_its_last() -> None:
    simulation = Simulation(copying, free_rows)
    sequence = simulation.add(prompt_of(50), 60)
    while sequence.num_tokens < sequence.max_total_tokens:
        simulation.step()
        assert sequence.num_tokens <= sequence.max_total_tokens
    assert sequence.num_output_tokens == 60


def test_indexes_of_ended_sequences_are_dropped(request: pytest.FixtureRequest) -> None:
    gc.freeze()  # what other tests left is not looked at: it may be millions of objects
    request.addfinalizer(gc.unfreeze)
    simulation = Simulation(copying, free_rows)
    for seed in range(12):
        simulation.add(prompt_of(50, seed=seed), 40)
    most = 0
    while simulation.scheduler.has_work:
        simulation.step()
        most = max(most, num_indexes_in_memory())
    assert simulation.drafter.is_on
    assert most == simulation.max_num_seqs


def num_indexes_in_memory() -> int:
    # By `type`: `isinstance` asks every object for its class, and one of torch's answers with a warning.
    return sum(type(one) is PromptLookup for one in gc.get_objects())


# What drafts are worth.


def test_free_rows_are_drafted_as_far_as_a_draft_has_any_chance() -> None:
    survival = [0.9**depth for depth in range(64)]
    (count,) = choose_counts([Candidate(0.5, 64)], survival, num_sequences=1, plain_seconds=1.0, row_seconds=0.0)
    assert 0.5 * survival[count - 1] >= 0.1 > 0.5 * survival[count]


def test_a_row_at_the_price_of_a_token_is_never_drafted() -> None:
    assert choose_counts([Candidate(0.99, 64)], [1.0] * 64, num_sequences=8, plain_seconds=8.0, row_seconds=1.0) == [0]


def slow_rate(counts: tuple[int, ...], chances: list[float], survival: list[float], row_seconds: float) -> float:
    accepted = sum(chance * sum(survival[:count]) for chance, count in zip(chances, counts, strict=True))
    return (4 + accepted) / (1.0 + row_seconds * sum(counts))


@pytest.mark.parametrize("row_seconds", [0.02, 0.05, 0.1, 0.15, 0.2])
def test_the_counts_chosen_make_the_most_tokens_per_second(row_seconds: float) -> None:
    chances, survival = [0.95, 0.6, 0.3], [0.8**depth for depth in range(6)]
    chosen = choose_counts(
        [Candidate(chance, 6) for chance in chances],
        survival,
        num_sequences=4,
        plain_seconds=1.0,
        row_seconds=row_seconds,
    )
    every = [(a, b, c) for a in range(7) for b in range(7) for c in range(7)]
    best = max(slow_rate(counts, chances, survival, row_seconds) for counts in every)
    assert slow_rate(tuple(chosen), chances, survival, row_seconds) == pytest.approx(best)


def test_acceptance_is_learned_by_match_length_and_depth() -> None:
    acceptance = Acceptance(max_match=4, max_drafts=8)
    for _ in range(200):
        acceptance.observe(1, num_drafts=4, num_accepted=0, has_ended=False)
        acceptance.observe(4, num_drafts=4, num_accepted=2, has_ended=False)
    assert acceptance.first_chance(1) < 0.1
    assert acceptance.first_chance(4) > 0.9
    survival = acceptance.survival()
    assert survival[1] > 0.9
    assert survival[2] < 0.1
    assert survival == sorted(survival, reverse=True)


def test_a_draft_after_the_end_of_a_sequence_is_no_failure() -> None:
    acceptance = Acceptance(max_match=1, max_drafts=8)
    before = acceptance.survival()
    acceptance.observe(1, num_drafts=8, num_accepted=1, has_ended=True)
    assert acceptance.survival() == before
    assert acceptance.first_chance(1) > 0.5


def test_a_pause_of_the_machine_does_not_change_what_rows_cost() -> None:
    cost = SpeculationCost()
    for index in range(16):
        cost.observe(4, num_drafts=0, seconds=50.0 if index == 3 else 1.0)
        cost.observe(4, num_drafts=10, seconds=99.0 if index == 5 else 1.5)
    assert cost.plain_seconds(4) == 1.0
    assert cost.row_seconds(4) == pytest.approx(0.05)


def test_steps_of_other_sizes_speak_for_a_size_not_seen() -> None:
    cost = SpeculationCost()
    for _ in range(4):
        cost.observe(4, num_drafts=0, seconds=1.0)
        cost.observe(4, num_drafts=10, seconds=1.5)
    assert cost.row_seconds(64) == pytest.approx(0.05)
    assert cost.plain_seconds(64) == pytest.approx(1.0 + 60 * 0.05)
    assert cost.plain_seconds(1) == pytest.approx(1.0 - 3 * 0.05)


def test_drafting_steps_are_interrupted_for_one_to_compare_with() -> None:
    cost = SpeculationCost()
    assert cost.wants_plain(4)
    for _ in range(3):
        cost.observe(4, num_drafts=0, seconds=1.0)
    num_drafting = 0
    while not cost.wants_plain(4):
        cost.observe(4, num_drafts=5, seconds=1.0)
        num_drafting += 1
    assert num_drafting == 32
