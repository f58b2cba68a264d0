"""Meters: counters, gauges and timers, declared once; each process keeps those of its role in its own registry.

Implements the Prometheus format; the meters themselves are in `declared`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of durations."""


class Kind(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"  # only grows, except for restarts; the name ends in `_total`
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """One declared metric."""

    name: str
    kind: Kind
    says: str
    labels: tuple[str, ...] = ()
    alert: str | None = None
    """When to alert, as PromQL and the reason, for the few that matter."""
    zeros: tuple[tuple[str, ...], ...] = ()
    """Label values that are shown at 0 from the start: Prometheus sees no growth in a series that begins at 1."""


def counter(
    name: str, says: str, *labels: str, alert: str | None = None, zeros: Iterable[tuple[str, ...]] = ()
) -> Meter:
    """Declare a counter."""
    full_name = f"tokenmill_{name}_total"
    return Meter(name=full_name, kind=Kind.COUNTER, says=says, labels=labels, alert=alert, zeros=tuple(zeros))


def gauge(name: str, says: str, *labels: str, alert: str | None = None) -> Meter:
    """Declare a gauge."""
    return Meter(name=f"tokenmill_{name}", kind=Kind.GAUGE, says=says, labels=labels, alert=alert)


def timer(name: str, says: str, *labels: str, alert: str | None = None) -> Meter:
    """Declare a histogram of seconds."""
    return Meter(name=f"tokenmill_{name}_seconds", kind=Kind.HISTOGRAM, says=says, labels=labels, alert=alert)


class Meters:
    """The meters of one process. Every method may be called from any thread."""

    def __init__(self, declared: Iterable[Meter]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # no second series with each counter's creation time
        self.registry = CollectorRegistry()
        self._made = {meter.name: _MAKERS[meter.kind](meter, self.registry) for meter in declared}

    def count(self, meter: Meter, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        self._of(meter, labels).inc(by)

    def observe(self, meter: Meter, value: float, *labels: str) -> None:
        """Add an observation to a histogram."""
        self._of(meter, labels).observe(value)

    @contextmanager
    def timed(self, meter: Meter, *, monotonic: Callable[[], float] = time.monotonic) -> Iterator[None]:
        """Observe how many seconds the block takes, unless it raises."""
        began = monotonic()
        yield
        self.observe(meter, monotonic() - began)

    def _of(self, meter: Meter, labels: Sequence[str]) -> Any:
        metric = self._made[meter.name]
        return metric.labels(*labels) if labels else metric


def _counter(meter: Meter, registry: CollectorRegistry) -> Counter:
    made = Counter(meter.name, meter.says, meter.labels, registry=registry)
    for labels in meter.zeros:
        made.labels(*labels)
    return made


_MAKERS: dict[Kind, Callable[[Meter, CollectorRegistry], Any]] = {
    Kind.COUNTER: _counter,
    Kind.GAUGE: lambda meter, registry: Gauge(meter.name, meter.says, meter.labels, registry=registry),
    Kind.HISTOGRAM: lambda meter, registry: Histogram(
        meter.name, meter.says, meter.labels, registry=registry, buckets=SECONDS
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One externally read value of a counter or a gauge."""

    meter: Meter
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSample:
    """One histogram: `counts[i]` observations above the previous bound and up to `bounds[i]`; the last has no bound."""

    meter: Meter
    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float
    labels: dict[str, str] = field(default_factory=dict)


class SampleCollector(Collector):
    """Reads samples at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Sample | HistogramSample]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Return nothing: samples are read later."""
        return ()

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Any] = {}
        for sample in self._read():
            family = families.setdefault(sample.meter.name, _family(sample))
            labels = list(sample.labels.values())
            if isinstance(sample, HistogramSample):
                family.add_metric(labels, buckets=_buckets(sample), sum_value=sample.sum)
            else:
                family.add_metric(labels, sample.value)
        return families.values()


_FAMILIES: dict[Kind, Any] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _family(sample: Sample | HistogramSample) -> Any:
    return _FAMILIES[sample.meter.kind](sample.meter.name, sample.meter.says, labels=list(sample.labels))


def _buckets(sample: HistogramSample) -> list[tuple[str, float]]:
    """Return Prometheus' cumulative buckets."""
    bounds = [*(f"{bound:g}" for bound in sample.bounds), "+Inf"]
    return list(zip(bounds, accumulate(sample.counts), strict=True))
