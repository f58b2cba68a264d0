"""What a worker tells of its engine in its heartbeat: the names of vLLM's metrics, ready for `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.outputs import EngineStats
from engine.timings import BOUNDS_SECONDS, Histogram


def engine_metrics(stats: EngineStats) -> dict[str, float | Mapping[str, Any]]:
    """Return gauges, counters (names that end in `_total`) and histograms (`bounds`, `counts`, `sum`) by name.

    What the engine cannot tell is left out.
    """
    timings = stats.timings
    metrics: dict[str, float | Mapping[str, Any]] = {
        "num_requests_running": stats.num_running,
        "num_requests_waiting": stats.num_waiting,
        "slot_occupancy": stats.num_running / max(1, stats.max_num_seqs),
        "kv_cache_usage_perc": stats.num_used_blocks / max(1, stats.num_kv_blocks),
        "prompt_tokens_total": stats.num_prompt_tokens_total,
        "generation_tokens_total": stats.num_output_tokens_total,
        "prefix_cache_queries_total": stats.num_looked_up_tokens_total,
        "prefix_cache_hits_total": stats.num_cached_tokens_total,
        "num_preemptions_total": stats.num_preemptions_total,
        "num_swaps_total": stats.num_swaps_total,
        "spec_decode_num_draft_tokens_total": stats.num_drafted_tokens_total,
        "spec_decode_num_accepted_tokens_total": stats.num_accepted_tokens_total,
        "num_forced_tokens_total": stats.num_forced_tokens_total,
        "num_steps_total": stats.num_steps_total,
        "sequences_finished_total": stats.num_finished_total,
        "estimated_flops_total": stats.num_operations_total,
        "estimated_read_bytes_total": stats.num_read_bytes_total,
        "estimated_write_bytes_total": stats.num_written_bytes_total,
        "request_queue_time_seconds": _histogram(timings.queue_time),
        "time_to_first_token_seconds": _histogram(timings.time_to_first_token),
        "inter_token_latency_seconds": _histogram(timings.inter_token_latency),
        "e2e_request_latency_seconds": _histogram(timings.e2e_latency),
    }
    if stats.num_joules_total is not None:
        metrics["energy_joules_total"] = stats.num_joules_total
    return metrics


def _histogram(histogram: Histogram) -> Mapping[str, Any]:
    return {"bounds": BOUNDS_SECONDS, "counts": histogram.counts, "sum": histogram.sum_seconds}
