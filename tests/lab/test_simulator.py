from __future__ import annotations

import math
import random
from array import array
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from engine.config import Admission, PolicyName, SchedulerConfig
from engine.scheduling.step_load import StepLoad
from lab.simulation.cost import LinearCost, RooflineCost, fit_linear_cost, fit_measured_cost
from lab.simulation.latency import LatencyHistogram
from lab.simulation.sequences import SimulatedRequest
from lab.simulation.simulator import SimulationResult, Simulator
from tests.engine.simulated_engine import SimulatedEngine, expected_output

pytestmark = pytest.mark.comparison

SECOND_A_STEP = LinearCost(
    per_step=1.0,
    per_token=0.0,
    per_seq=0.0,
    per_context_token=0.0,
    per_shared_token=0.0,
    per_attended=0.0,
    per_logit_row=0.0,
)


@dataclass
class LoadLog:
    """A cost model that records the loads of its calls."""

    loads: list[StepLoad]

    def seconds(self, load: StepLoad) -> float:
        self.loads.append(load)
        return 1.0


def simulate(
    requests: list[SimulatedRequest],
    *,
    num_blocks: int = 63,
    max_num_seqs: int = 8,
    budget: int = 32,
    **settings: Any,
) -> SimulationResult:
    cost = settings.pop("cost", SECOND_A_STEP)
    on_end = settings.pop("on_end", None)
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=512, **settings)
    simulator = Simulator(cost, config, num_kv_blocks=num_blocks, block_size=4, on_end=on_end)
    result = simulator.run(requests)
    simulator.scheduler.check_integrity()
    assert simulator.scheduler.pool.num_used == 0
    return result


def one(prompt: int, output: int, **fields: object) -> SimulatedRequest:
    given = {"arrival_seconds": 0.0, "max_tokens": output, "has_known_length": True, **fields}
    return SimulatedRequest(num_prompt_tokens=prompt, num_output_tokens=output, **given)  # type: ignore[arg-type]


def test_the_times_of_one_request_are_those_of_its_steps() -> None:
    result = simulate([one(40, 5, arrival_seconds=10.0)])
    # Two steps for a prompt of 40 with a budget of 32, the second gives the first token, four more give the rest.
    assert (result.start[0], result.first_token[0], result.end[0]) == (10.0, 12.0, 16.0)
    assert (result.gaps.count, result.gaps.mean) == (4, 1.0)
    assert (result.seconds, result.busy_seconds, result.output_tokens_per_second) == (6.0, 6.0, 5 / 6)


def test_an_idle_engine_waits_for_the_next_arrival() -> None:
    result = simulate([one(4, 2), one(4, 2, arrival_seconds=100.0)])
    assert result.end.tolist() == [2.0, 102.0]
    assert (result.seconds, result.busy_seconds) == (102.0, 4.0)


def test_a_request_that_can_never_fit_is_counted_and_the_others_run() -> None:
    result = simulate([one(500, 13), one(300, 2), one(4, 2)])
    assert result.num_refused == 2
    assert result.number.tolist() == [2]


def test_a_sequence_may_end_before_max_tokens() -> None:
    result = simulate([one(4, 3, max_tokens=50, has_known_length=False)])
    assert result.end.tolist() == [3.0]


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("admission", list(Admission))
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("has_known_length", [True, False])
def test_it_takes_the_very_steps_that_the_engine_takes(
    *, policy: PolicyName, admission: Admission, caching: bool, has_known_length: bool
) -> None:
    settings: dict[str, Any] = {"policy": policy, "admission": admission, "enable_prefix_caching": caching}
    rng = random.Random(2)
    engine = SimulatedEngine(num_blocks=25, max_num_seqs=6, **settings)
    shared = [rng.randrange(97) for _ in range(20)]
    requests = []
    for index in range(40):
        num_shared = rng.choice([0, 9, 16, 20])
        prompt = [*shared[:num_shared], 1000 + index, *(rng.randrange(97) for _ in range(rng.randint(0, 20)))]
        outputs = expected_output(prompt, rng.randint(1, 30))
        stop = () if has_known_length else (outputs[-1],)
        num_outputs = len(outputs) if has_known_length else outputs.index(outputs[-1]) + 1
        max_tokens = num_outputs if has_known_length else min(num_outputs + rng.randint(0, 40), 50)
        deadline = None if index % 3 == 0 else float(rng.randint(20, 300))
        asked: dict[str, Any] = {"priority": index % 2, "deadline": deadline}
        engine.add(prompt, max_tokens, tenant=f"t{index % 3}", stop_token_ids=stop, **asked)
        given = {"has_known_length": has_known_length, "prefix": "shared", "num_prefix_tokens": num_shared, **asked}
        given["prompt_bytes"] = array("I", prompt).tobytes()
        requests.append(one(len(prompt), num_outputs, max_tokens=max_tokens, tenant=f"t{index % 3}", **given))
    steps = engine.run()
    result = simulate(requests, num_blocks=24, max_num_seqs=6, **settings)
    assert result.number.tolist() == list(engine.finished)
    assert (result.counters, result.cache) == (engine.scheduler.counters, engine.scheduler.cache_counters)
    assert result.seconds == steps


def test_the_forecast_learns_the_share_that_is_generated() -> None:
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512)
    simulator = Simulator(SECOND_A_STEP, config, num_kv_blocks=100)
    simulator.run([one(50, 16, max_tokens=20, has_known_length=False) for _ in range(150)])
    assert simulator.scheduler.forecast.share == pytest.approx(0.8, abs=0.01)


def test_a_prefix_is_computed_once_for_all_who_come_together() -> None:
    requests = [one(30, 2, prefix="system", num_prefix_tokens=20) for _ in range(4)]
    result = simulate(requests)
    assert result.cache.num_cached_tokens == 3 * 20
    assert result.counters.num_computed_tokens == 20 + 4 * (10 + 1)


def test_requests_of_a_tenant_share_the_prefix_they_name_and_no_other() -> None:
    shared = {"prefix": "system", "num_prefix_tokens": 20}
    requests = [
        one(30, 2, tenant="a", **shared),
        one(30, 2, tenant="a", arrival_seconds=50.0, **shared),
        one(30, 2, tenant="b", arrival_seconds=100.0, **shared),
        one(30, 2, tenant="a", arrival_seconds=150.0, prefix="other", num_prefix_tokens=20),
    ]
    assert simulate(requests).cache.num_cached_tokens == 20


def test_a_preempted_request_reports_the_gap_it_left() -> None:
    result = simulate([one(8, 15), one(6, 12)], num_blocks=6, admission=Admission.PROMPT)
    assert result.num_preemptions.tolist() == [0, 1]
    assert result.gaps.count == 14 + 11
    assert result.gaps.quantile(1.0) > 5.0
    assert result.gaps.mean * result.gaps.count == pytest.approx(sum(result.end - result.first_token))


def test_a_result_hands_every_end_to_whoever_asks() -> None:
    ends: list[tuple[int, float]] = []
    simulate([one(4, 3), one(4, 2)], on_end=lambda asked, now: ends.append((asked.num_output_tokens, now)))
    assert ends == [(2, 2.0), (3, 3.0)]


def test_the_waste_of_slots_is_what_the_counters_say() -> None:
    result = simulate([one(5, 4)])
    # Steps leave 5, 6, 7 and 8 tokens in two blocks of four.
    assert result.cache.waste == pytest.approx(1 - (5 + 6 + 7 + 8) / 32)


def test_a_load_counts_tokens_contexts_pairs_and_rows() -> None:
    loads: list[StepLoad] = []
    simulate([one(4, 10), one(36, 2)], cost=LoadLog(loads))
    prompts = {"num_tokens": 32, "num_seqs": 2, "num_context_tokens": 32, "num_attended": 416, "num_logit_rows": 1}
    assert loads[0] == StepLoad(**prompts, num_shared_tokens=0)
    # A decode at context 5, and 8 tokens after 28 that attend to 29, 30, … 36.
    mixed = {"num_tokens": 9, "num_seqs": 2, "num_context_tokens": 41, "num_attended": 265, "num_logit_rows": 2}
    assert loads[1] == StepLoad(**mixed, num_shared_tokens=0)


def test_a_load_tells_what_its_sequences_found_in_the_prefix_cache() -> None:
    loads: list[StepLoad] = []
    simulate([one(12, 3, prefix="a", num_prefix_tokens=8) for _ in range(3)], cost=LoadLog(loads))
    # The first computes the two blocks, the other two find them.
    assert [(load.num_seqs, load.num_shared_tokens) for load in loads] == [(1, 0), (3, 16), (3, 16), (2, 16)]


def random_loads(count: int) -> list[StepLoad]:
    rng = random.Random(4)
    loads = []
    for _ in range(count):
        seqs, tokens, context = rng.randint(1, 64), rng.randint(64, 900), rng.randint(500, 40_000)
        loads.append(
            StepLoad(
                num_tokens=tokens,
                num_seqs=seqs,
                num_context_tokens=context,
                num_shared_tokens=rng.randint(0, context),
                num_attended=context * rng.randint(1, 9),
                num_logit_rows=rng.randint(0, seqs),
            )
        )
    return loads


def test_a_fit_finds_the_parts_that_made_the_times() -> None:
    truth = LinearCost(
        per_step=5e-3,
        per_token=3e-4,
        per_seq=2e-5,
        per_context_token=1e-7,
        per_shared_token=4e-8,
        per_attended=3e-9,
        per_logit_row=1e-4,
    )
    loads = random_loads(200)
    fitted = fit_linear_cost(loads, [truth.seconds(load) for load in loads])
    for load in random_loads(20):
        assert fitted.seconds(load) == pytest.approx(truth.seconds(load))


def test_a_fit_has_no_negative_part() -> None:
    loads = random_loads(200)
    # Times that fall with the number of sequences would need a negative part.
    fitted = fit_linear_cost(loads, [1.0 + 1e-3 * load.num_tokens - 1e-3 * load.num_seqs for load in loads])
    assert fitted.per_seq == 0.0
    assert fitted.per_token == pytest.approx(1e-3, rel=0.1)


def test_a_fit_finds_the_knee_up_to_which_tokens_cost_little() -> None:
    loads = [replace(load, num_tokens=tokens) for tokens, load in enumerate(random_loads(120), start=1)]
    seconds = [0.01 + 1e-4 * max(0, load.num_tokens - 32) for load in loads]
    fitted = fit_linear_cost(loads, seconds)
    assert fitted.knee_tokens == 32
    assert fitted.per_token_past_knee == pytest.approx(1e-4)
    assert fitted.seconds(loads[3]) == pytest.approx(0.01)


def test_a_fit_is_not_led_astray_by_interrupted_steps() -> None:
    loads = random_loads(200)
    seconds = [0.01 + 1e-4 * load.num_tokens for load in loads]
    for index in range(0, 200, 10):
        seconds[index] *= 2
    fitted = fit_linear_cost(loads, seconds)
    for load in loads:
        assert fitted.seconds(load) == pytest.approx(0.01 + 1e-4 * load.num_tokens, rel=0.02)


def test_steps_of_one_token_a_sequence_are_fitted_apart_where_there_are_enough() -> None:
    mixed = random_loads(40)
    decodes = [replace(load, num_tokens=load.num_seqs, num_attended=load.num_context_tokens) for load in mixed]
    seconds = [1.0 + 1e-3 * load.num_tokens for load in mixed] + [0.5 + 1e-2 * load.num_seqs for load in decodes]
    fitted = fit_measured_cost(mixed + decodes, seconds)
    assert fitted.seconds(decodes[0]) == pytest.approx(0.5 + 1e-2 * decodes[0].num_seqs)
    assert fitted.seconds(mixed[0]) == pytest.approx(1.0 + 1e-3 * mixed[0].num_tokens)
    few = fit_measured_cost(mixed + decodes[:5], seconds[:45])
    assert few.decode == fit_linear_cost(mixed + decodes[:5], seconds[:45])


def test_a_gpu_step_is_bound_by_memory_when_small_and_by_arithmetic_when_large() -> None:
    cost = RooflineCost(
        bytes_per_second=4e12,
        operations_per_second=8e14,
        efficiency=0.5,
        weight_bytes=16e9,
        kv_bytes_per_token=1e5,
        weight_count=7e9,
        attention_width=1e5,
        logit_row_operations=1e9,
    )
    small = StepLoad(
        num_tokens=1, num_seqs=1, num_context_tokens=100, num_shared_tokens=0, num_attended=100, num_logit_rows=1
    )
    assert cost.seconds(small) == pytest.approx((16e9 + 1e7) / 4e12 / 0.5)
    large = replace(small, num_tokens=8192)
    assert cost.seconds(large) == pytest.approx((2 * 7e9 * 8192 + 4 * 1e5 * 100 + 1e9) / 8e14 / 0.5)


def test_a_histogram_s_quantiles_are_within_half_a_percent() -> None:
    durations = np.random.default_rng(1).lognormal(-3.0, 1.5, 5_000)
    histogram = LatencyHistogram()
    for duration in durations:
        histogram.add(float(duration))
    histogram.add(1.0, 0)
    assert histogram.count == 5_000
    assert histogram.mean == pytest.approx(durations.mean())
    for share in (0.1, 0.5, 0.95, 0.99):
        assert histogram.quantile(share) == pytest.approx(
            np.quantile(durations, share, method="inverted_cdf"), rel=0.005
        )
    assert math.isnan(LatencyHistogram().quantile(0.5))
