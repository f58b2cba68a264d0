"""Tests of a worker's metrics of its engine."""

from __future__ import annotations

import pytest

from engine.stats import (
    BOUNDS_SECONDS,
    CacheCounters,
    Energy,
    EngineLoad,
    EngineStats,
    Histogram,
    RequestCounters,
    SchedulerCounters,
    Sizes,
    SpeculationCounters,
    Timings,
    WorkCounters,
)
from workers.engine_metrics import engine_metrics


def test_the_engine_s_numbers_have_the_names_that_dashboards_know() -> None:
    stats = EngineStats(
        load=EngineLoad(1, 2, max_num_seqs=4, num_blocks=10, num_used_blocks=5, num_cached_blocks=6),
        scheduler=SchedulerCounters(num_steps=7, num_preemptions=8, num_swaps=9),
        cache=CacheCounters(num_looked_up_tokens=11, num_cached_tokens=12),
        requests=RequestCounters(
            num_prompt_tokens=13, num_output_tokens=14, num_forced_tokens=15, num_finished=16, num_broken=23
        ),
        speculation=SpeculationCounters(num_drafted=17, num_accepted=18),
        work=WorkCounters(num_operations=19.0, num_read_bytes=20.0, num_written_bytes=21.0),
        energy=Energy(22.0),
        timings=Timings(Histogram([1], 0.5), Histogram([2], 0.6), Histogram([3], 0.7), Histogram([4], 0.8)),
    )
    known = {
        "num_requests_running": 1,
        "num_requests_waiting": 2,
        "slot_occupancy": 0.25,
        "kv_cache_usage_perc": 0.5,
        "num_steps_total": 7,
        "num_preemptions_total": 8,
        "num_swaps_total": 9,
        "prefix_cache_queries_total": 11,
        "prefix_cache_hits_total": 12,
        "prompt_tokens_total": 13,
        "generation_tokens_total": 14,
        "num_forced_tokens_total": 15,
        "sequences_finished_total": 16,
        "sequences_broken_total": 23,
        "spec_decode_num_draft_tokens_total": 17,
        "spec_decode_num_accepted_tokens_total": 18,
        "estimated_flops_total": 19.0,
        "estimated_read_bytes_total": 20.0,
        "estimated_write_bytes_total": 21.0,
        "energy_joules_total": 22.0,
        "request_queue_time_seconds": {"bounds": BOUNDS_SECONDS, "counts": [1], "sum": 0.5},
        "time_to_first_token_seconds": {"bounds": BOUNDS_SECONDS, "counts": [2], "sum": 0.6},
        "inter_token_latency_seconds": {"bounds": BOUNDS_SECONDS, "counts": [3], "sum": 0.7},
        "e2e_request_latency_seconds": {"bounds": BOUNDS_SECONDS, "counts": [4], "sum": 0.8},
    }
    assert known.items() <= engine_metrics(stats).items()


def test_sizes_are_told_as_histograms() -> None:
    sizes = Sizes()
    for size in (1, 3, 4, 2**20 + 1):
        sizes.step_sequences.add(size)
    told = engine_metrics(EngineStats(sizes=sizes))["step_sequences"]
    assert isinstance(told, dict)
    assert told["sum"] == 8 + 2**20 + 1
    assert [told["counts"][told["bounds"].index(bound)] for bound in (1, 2, 4, 8, 2**20)] == [1, 0, 2, 0, 0]
    assert told["counts"][-1] == 1


@pytest.mark.parametrize("joules", [0.0, 2.5])
def test_joules_are_told_where_the_engine_knows_them(joules: float) -> None:
    assert engine_metrics(EngineStats(energy=Energy(joules)))["energy_joules_total"] == joules


def test_what_the_engine_cannot_tell_is_left_out() -> None:
    assert "energy_joules_total" not in engine_metrics(EngineStats())
