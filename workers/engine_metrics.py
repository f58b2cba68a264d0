"""The engine's metrics in a worker's heartbeat, under vLLM's metric names, ready for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from engine.stats import EngineStats, Histogram, SizeHistogram, measured
from jobs.metrics import engine_samples
from jobs.telemetry.meters import HistogramSample, Meters, Sample, SampleCollector


def engine_metrics(stats: EngineStats) -> dict[str, float | Mapping[str, Any]]:
    """Return gauges, counters (names that end in `_total`) and histograms (`bounds`, `counts`, `sum`) by name.

    Values that the engine does not know are left out.
    """
    return {
        "slot_occupancy": stats.load.slot_occupancy,
        "kv_cache_usage_perc": stats.load.kv_use,
        **{name: _as_sample(value) for name, value in measured(stats)},
    }


def show_engine(meters: Meters, read: Callable[[], EngineStats], *, model: str, worker_id: str) -> None:
    """Export the engine's metrics beside the worker's own, read at each scrape."""

    def samples() -> Iterable[Sample | HistogramSample]:
        return engine_samples(engine_metrics(read()), model=model, worker_id=worker_id)

    meters.registry.register(SampleCollector(samples))


def _as_sample(value: float | Histogram | SizeHistogram) -> float | Mapping[str, Any]:
    if isinstance(value, Histogram | SizeHistogram):
        return {"bounds": value.bounds, "counts": value.counts, "sum": value.sum}
    return value
