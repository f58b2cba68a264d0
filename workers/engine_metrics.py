"""What a worker tells of its engine in its heartbeat: the names of vLLM's metrics, ready for `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.stats import BOUNDS_SECONDS, EngineStats, Histogram, measured


def engine_metrics(stats: EngineStats) -> dict[str, float | Mapping[str, Any]]:
    """Return gauges, counters (names that end in `_total`) and histograms (`bounds`, `counts`, `sum`) by name.

    What the engine cannot tell is left out.
    """
    return {
        "slot_occupancy": stats.load.slot_occupancy,
        "kv_cache_usage_perc": stats.load.kv_use,
        **{name: _histogram(value) if isinstance(value, Histogram) else value for name, value in measured(stats)},
    }


def _histogram(histogram: Histogram) -> Mapping[str, Any]:
    return {"bounds": BOUNDS_SECONDS, "counts": histogram.counts, "sum": histogram.sum_seconds}
