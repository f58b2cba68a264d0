from __future__ import annotations

import pytest

from engine.config import Admission, PolicyName
from engine.params import SamplingParams
from engine.scheduling.admission import Shortage
from engine.scheduling.decisions import Decision, DecisionLog, Reason, outcome, sentence
from engine.scheduling.request import Request, Sequence
from engine.stats import SchedulerCounters
from tests.engine.simulated_engine import SimulatedEngine


def reasons(engine: SimulatedEngine, request_id: int) -> list[Reason]:
    return [decision.reason for decision in engine.scheduler.decisions(request_id)]


def test_a_request_that_starts_at_once_says_so() -> None:
    engine = SimulatedEngine()
    request_id = engine.add([1] * 4, 3)
    engine.step()
    (decision,) = engine.scheduler.decisions(request_id)
    assert (decision.reason, decision.waited_seconds, decision.step) == (Reason.STARTED, 0.0, 0)


def test_a_request_without_a_seat_says_so_once_and_then_how_long_it_waited() -> None:
    engine = SimulatedEngine(max_num_seqs=1)
    engine.add([1] * 4, 5)
    second = engine.add([2] * 4, 5)
    engine.run()
    first, last = engine.scheduler.decisions(second)
    assert (first.reason, last.reason) == (Reason.NO_SEAT, Reason.STARTED)
    assert last.waited_seconds == 5.0


def test_a_request_without_blocks_says_how_many_it_needs_and_how_many_there_are() -> None:
    engine = SimulatedEngine(num_blocks=9, admission=Admission.PROMPT)
    engine.add([1] * 20, 5)
    second = engine.add([2] * 16, 5)
    engine.step()
    (decision,) = engine.scheduler.decisions(second)
    assert decision.reason is Reason.NO_BLOCKS
    assert (decision.num_needed_blocks, decision.num_available_blocks) == (4, 3)


def test_a_request_whose_peak_does_not_fit_says_what_the_peak_needs() -> None:
    engine = SimulatedEngine(num_blocks=9, admission=Admission.PEAK)
    engine.add([1] * 8, 20)
    second = engine.add([2] * 8, 20)
    engine.step()
    (decision,) = engine.scheduler.decisions(second)
    assert decision.reason is Reason.NO_BLOCKS
    assert decision.num_available_blocks == 8
    assert decision.num_needed_blocks is not None
    assert decision.num_needed_blocks > 8


def test_a_request_that_finds_the_step_full_says_so() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=8)
    engine.add([1] * 8, 3)
    second = engine.add([2] * 8, 3)
    engine.step()
    assert reasons(engine, second) == [Reason.NO_BUDGET]


def test_one_that_is_not_next_names_the_one_that_is() -> None:
    engine = SimulatedEngine(max_num_seqs=1)
    engine.add([1] * 4, 5)
    bulk = engine.add([2] * 4, 5, priority=2)
    urgent = engine.add([3] * 4, 5, priority=0)
    engine.step()
    (decision,) = engine.scheduler.decisions(bulk)
    assert (decision.reason, decision.other_request_id) == (Reason.BEHIND, urgent)
    assert reasons(engine, urgent) == [Reason.NO_SEAT]


def test_children_wait_for_the_prompt_of_the_first() -> None:
    engine = SimulatedEngine()
    request_id = engine.add([1] * 9, 3, n=3)
    decisions = engine.scheduler.decisions(request_id)
    assert [(decision.index, decision.reason) for decision in decisions] == [
        (1, Reason.SHARED_PREFIX),
        (2, Reason.SHARED_PREFIX),
    ]


def test_a_request_waits_for_a_prefix_that_another_is_computing() -> None:
    engine = SimulatedEngine()
    prompt = list(range(13))
    first = engine.add(prompt, 3)
    second = engine.add(prompt, 3)
    engine.step()
    decision = engine.scheduler.decisions(second)[0]
    assert (decision.reason, decision.other_request_id) == (Reason.SHARED_PREFIX, first)


def test_a_preemption_for_blocks_names_who_got_them() -> None:
    engine = SimulatedEngine(num_blocks=7, admission=Admission.PROMPT)
    first = engine.add([1] * 8, 15)
    second = engine.add([2] * 6, 12)
    engine.run()
    (preempted,) = [
        decision for decision in engine.scheduler.decisions(second) if decision.reason is Reason.PREEMPTED_FOR_BLOCKS
    ]
    assert preempted.other_request_id == first
    assert (preempted.num_needed_blocks, preempted.num_available_blocks) == (1, 0)


def test_a_preemption_by_a_more_urgent_request_names_it() -> None:
    engine = SimulatedEngine(max_num_seqs=1)
    bulk = engine.add([1] * 4, 20, priority=2)
    engine.step()
    urgent = engine.add([2] * 4, 3, priority=0)
    engine.step()
    decision = engine.scheduler.decisions(bulk)[1]
    assert (decision.reason, decision.other_request_id) == (Reason.PREEMPTED_FOR_URGENT, urgent)


@pytest.mark.parametrize("policy", list(PolicyName))
def test_the_log_of_unfinished_requests_empties_with_them(policy: PolicyName) -> None:
    engine = SimulatedEngine(policy=policy, num_blocks=19, admission=Admission.PROMPT)
    for index in range(20):
        engine.add([index] * 12, 9, priority=index % 2)
    engine.run()
    assert engine.scheduler._roster.log._by_request == {}
    assert engine.scheduler.decisions(), "the last decisions stay"


def log_of(capacity: int) -> tuple[DecisionLog, list[Sequence]]:
    engine = SimulatedEngine()
    requests = [
        Request(
            request_id=index,
            prompt_token_ids=[1],
            params=SamplingParams(),
            max_tokens=1,
            seed=0,
            eos_token_ids=frozenset(),
            arrival=index,
        )
        for index in range(3)
    ]
    sequences = [Sequence(request, 0, engine.scheduler.pool.chain("")) for request in requests]
    return DecisionLog(lambda: 1.5, SchedulerCounters(), capacity=capacity), sequences


def test_the_log_keeps_only_the_last_decisions() -> None:
    log, sequences = log_of(capacity=2)
    for sequence in sequences:
        log.record(sequence, Reason.STARTED)
    assert [decision.request_id for decision in log.recent()] == [1, 2]
    assert [decision.request_id for decision in log.of_request(0)] == [0], "it is unfinished, so it has its own"
    log.forget(0)
    assert log.of_request(0) == []


def test_new_decisions_are_taken_once() -> None:
    log, sequences = log_of(capacity=2)
    log.record(sequences[0], Reason.NO_SEAT)
    assert [decision.request_id for decision in log.pop_new()] == [0]
    assert log.pop_new() == []
    for sequence in sequences:
        log.record(sequence, Reason.STARTED)
    assert [decision.request_id for decision in log.pop_new()] == [1, 2], "the oldest of three is no longer kept"
    assert log.pop_new() == []


def test_only_a_new_reason_or_another_sequence_is_news() -> None:
    log, (first, second, _) = log_of(capacity=9)
    for sequence, reason in (
        (first, Reason.NO_SEAT),
        (first, Reason.NO_SEAT),
        (first, Reason.NO_BLOCKS),
        (second, Reason.NO_BLOCKS),
        (second, Reason.NO_BLOCKS),
    ):
        log.record_news(sequence, reason)
    assert [(decision.request_id, decision.reason) for decision in log.recent()] == [
        (0, Reason.NO_SEAT),
        (0, Reason.NO_BLOCKS),
        (1, Reason.NO_BLOCKS),
    ]


def decision(reason: Reason) -> Decision:
    log, (_, first, second) = log_of(capacity=9)
    shortage = Shortage(num_needed_blocks=63, num_available_blocks=12)
    return log.decision(first, reason, other=second, shortage=shortage)


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason.STARTED, "started after waiting 1.500 s"),
        (Reason.BEHIND, "waits behind request 2, which is next"),
        (Reason.NO_SEAT, "is next and waits: every seat of the batch is taken"),
        (Reason.NO_BLOCKS, "is next and waits: 63 blocks are needed and 12 available"),
        (Reason.NO_BUDGET, "is next and waits: this step's token budget is spent"),
        (Reason.SHARED_PREFIX, "waits for request 2 to compute the prefix that both share"),
        (Reason.PREEMPTED_FOR_BLOCKS, "was preempted for request 2: 63 blocks are needed and 12 available"),
        (Reason.PREEMPTED_FOR_URGENT, "was preempted: request 2 is more urgent"),
        (Reason.PREEMPTED_FOR_SHARE, "was preempted for request 2: its tenant holds far more seats"),
        (Reason.NEW_ANGLES, "is computed anew: the model has other angles for sequences of its length"),
    ],
)
def test_every_reason_has_a_sentence(reason: Reason, text: str) -> None:
    assert sentence(decision(reason)) == f"1.500 s, step 0: request 1[0] {text}."
    assert set(Reason) >= {reason}


def test_an_outcome_may_call_other_requests_by_name() -> None:
    names = {2: "line 9"}
    assert outcome(decision(Reason.PREEMPTED_FOR_URGENT), names.__getitem__) == "was preempted: line 9 is more urgent"
