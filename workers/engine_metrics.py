"""What a worker tells of its engine in its heartbeat: the names of vLLM's metrics, ready for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from engine.stats import EngineStats, Histogram, SizeHistogram, measured
from jobs.metrics import engine_samples
from jobs.telemetry.meters import HistogramSample, Meters, Sample, SampleCollector


def engine_metrics(stats: EngineStats) -> dict[str, float | Mapping[str, Any]]:
    """Return gauges, counters (names that end in `_total`) and histograms (`bounds`, `counts`, `sum`) by name.

    What the engine cannot tell is left out.
    """
    return {
        "slot_occupancy": stats.load.slot_occupancy,
        "kv_cache_usage_perc": stats.load.kv_use,
        **{name: _told(value) for name, value in measured(stats)},
    }


def show_engine(meters: Meters, read: Callable[[], EngineStats], *, model: str, worker_id: str) -> None:
    """Show the engine's numbers beside a worker's own, as they are when Prometheus asks."""

    def samples() -> Iterable[Sample | HistogramSample]:
        return engine_samples(engine_metrics(read()), model=model, worker_id=worker_id)

    meters.registry.register(SampleCollector(samples))


def _told(value: float | Histogram | SizeHistogram) -> float | Mapping[str, Any]:
    if isinstance(value, Histogram | SizeHistogram):
        return {"bounds": value.bounds, "counts": value.counts, "sum": value.sum}
    return value
