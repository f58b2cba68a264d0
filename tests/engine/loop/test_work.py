"""Tests of estimates of arithmetic and memory traffic, and of histograms of requests' durations."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from engine.build import build_engine
from engine.config import EngineConfig
from engine.loop.recorder import Appended, Recorded, Recorder
from engine.loop.work import WorkCounter
from engine.models.step_model import ModelSizes
from engine.outputs import FinishReason, SequenceTimes, TokenDelta
from engine.params import SamplingParams
from engine.process.messages import Progress, decode_from_engine, encode
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.seat_numbers import ints
from engine.stats import BOUNDS_SECONDS, EngineStats, Histogram
from tests.engine.builders import new_request
from tests.engine.simulated_engine import SimulatedEngine
from tests.engine.tiny_models import TinyModels

SIZES = ModelSizes(
    num_layer_weights=1000, num_head_weights=500, num_layer_bytes=2000, num_head_bytes=750, attention_width=16
)


def plan_of(starts: list[int], counts: list[int], num_sampled: list[int]) -> StepPlan:
    return StepPlan(sequences=[], starts=ints(starts), counts=ints(counts), num_sampled=ints(num_sampled))


def test_a_decode_step_reads_all_weights_and_every_context() -> None:
    work = WorkCounter(SIZES, kv_bytes_per_token=10)
    work.observe(plan_of([9, 19], [1, 1], [1, 1]))
    assert work.counters.num_operations == 2 * 1000 * 2 + 2 * 500 * 2 + 4 * 16 * (10 + 20)
    assert work.counters.num_read_bytes == 2000 + 750 + 10 * 30
    assert work.counters.num_written_bytes == 10 * 2


def test_a_chunk_in_the_middle_of_a_prompt_reads_no_output_matrix() -> None:
    work = WorkCounter(SIZES, kv_bytes_per_token=10)
    work.observe(plan_of([4], [3], [0]))
    assert work.counters.num_operations == 2 * 1000 * 3 + 4 * 16 * (5 + 6 + 7)
    assert work.counters.num_read_bytes == 2000 + 10 * 7


def test_more_work_than_the_largest_integer_of_a_message_is_counted_on() -> None:
    work = WorkCounter(replace(SIZES, num_layer_weights=2**63, num_layer_bytes=2**64), kv_bytes_per_token=2**60)
    for _ in range(2):
        work.observe(plan_of([9], [9], [1]))
    assert all(isinstance(number, float) and number > 2**64 for number in astuple(work.counters))


@pytest.mark.parametrize("impl", ["tokenmill", "transformers"])
def test_both_decoders_tell_the_same_sizes(impl: str, tiny_models: TinyModels) -> None:
    path = str(tiny_models["llama-gqa"].path)
    engine = build_engine(EngineConfig(model=path, model_impl=impl, num_kv_blocks=50, warm_up=False))  # type: ignore[arg-type]
    engine.add(new_request(0, [5, 6, 7], params=SamplingParams(max_tokens=1)))
    engine.step()
    stats = engine.stats()
    # 3 layers of 48 × (2 · 48 + 2 · 16) attention and 3 · 48 · 96 MLP weights; norms are no products.
    layers, head = 3 * (48 * 128 + 3 * 48 * 96), 256 * 48
    norms = 0 if impl == "tokenmill" else 7 * 48
    assert stats.work.num_operations == 2 * (layers + norms) * 3 + 2 * head + 4 * 3 * 48 * (1 + 2 + 3)
    assert stats.work.num_written_bytes == 3 * (2 * 3 * 16 * 4)


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (5000.0, 20), (5000.1, 21)])
def test_a_duration_falls_into_its_bucket(seconds: float, bucket: int) -> None:
    histogram = Histogram()
    histogram.add(seconds)
    assert [index for index, count in enumerate(histogram.counts) if count] == [bucket]
    assert len(histogram.counts) == len(BOUNDS_SECONDS) + 1


def test_a_request_is_timed_from_its_arrival_to_its_end() -> None:
    engine = SimulatedEngine()
    engine.add([1, 2, 3], 9)
    (sequence,) = engine.scheduler._waiting
    assert isinstance(sequence, Sequence)
    engine.now = 2.0
    engine.step()
    recorder = Recorder(engine.scheduler)
    for now, token_ids, reason in [(5.0, [7], None), (9.0, [7] * 4, None), (11.0, [], FinishReason.LENGTH)]:
        engine.now = now
        delta = TokenDelta(request_id=0, token_ids=token_ids, finish_reason=reason)
        recorder.report(Recorded(others=[Appended(sequence, delta, len(token_ids))]))
    timings = recorder.timings
    assert timings.queue_time.sum_seconds == 2.0
    assert timings.time_to_first_token.sum_seconds == 5.0
    assert timings.inter_token_latency.sum_seconds == 4.0
    assert sum(timings.inter_token_latency.counts) == 4
    assert timings.e2e_latency.sum_seconds == 11.0


def test_the_gaps_of_sequences_that_had_their_last_tokens_at_different_times_are_counted_apart() -> None:
    engine = SimulatedEngine()
    for prompt in ([1, 2, 3], [4, 5], [6]):
        engine.add(prompt, 9)
    engine.step()
    plan, recorder = engine.scheduler.last_plan, Recorder(engine.scheduler)
    for now, going_on in [(2.0, [0, 1]), (3.0, [2]), (5.0, [0, 1, 2])]:
        engine.now = now
        recorder.report(Recorded(plan, ints(going_on)))
    latency = recorder.timings.inter_token_latency
    assert latency.sum_seconds == 3.0 + 3.0 + 2.0
    assert [count for count in latency.counts if count] == [1, 2]


def test_sizes_of_steps_and_of_ended_sequences_are_counted() -> None:
    engine = SimulatedEngine()
    engine.add([1, 2, 3], 2)
    engine.add([4, 5], 1)
    while engine.scheduler.has_work:
        engine.step()
    sizes = engine.scheduler.sizes
    assert (sum(sizes.step_sequences.counts), sizes.step_sequences.sum) == (2, 2 + 1)
    assert (sum(sizes.sequence_kv_tokens.counts), sizes.sequence_kv_tokens.sum) == (2, 4 + 2)


def test_the_last_delta_of_a_sequence_tells_its_times() -> None:
    engine = SimulatedEngine()
    engine.add([1, 2, 3], 9)
    (sequence,) = engine.scheduler._waiting
    engine.now = 2.0
    engine.step()
    recorder = Recorder(engine.scheduler)
    first, last = TokenDelta(request_id=0, token_ids=[4]), TokenDelta(request_id=0, token_ids=[5])
    engine.now = 5.0
    recorder.report(Recorded(others=[Appended(sequence, first, 1)]))
    engine.now, last.finish_reason = 9.0, FinishReason.STOP
    recorder.report(Recorded(others=[Appended(sequence, last, 1)]))
    assert first.times is None
    assert last.times == SequenceTimes(arrived_at=0.0, started_at=2.0, first_token_at=5.0, ended_at=9.0)
    assert decode_from_engine(encode(Progress([last], EngineStats(), 1))) == Progress([last], EngineStats(), 1)
