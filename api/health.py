"""Tell supervisors and Prometheus how this process is: alive, able to serve, its numbers. Nothing here needs Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.exc import DBAPIError

from api.errors import unavailable_response
from api.openapi import failures, text_of
from api.schemas.health import Liveness, Readiness
from api.services import Services, ServicesDep
from jobs.database import is_ready, transaction
from jobs.errors import ServiceError
from jobs.metrics import HistogramSample, Sample, read_samples

logger = logging.getLogger(__name__)
router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="isAlive")
async def healthz() -> Liveness:
    """Answer as long as the event loop turns; needs no thread and no database."""
    return Liveness()


@router.get("/readyz", operation_id="isReady", response_model=Readiness, responses=failures(503))
def readyz(services: ServicesDep) -> Readiness | Response:
    """Answer 200 when Postgres answers, has this code's schema, and the object store answered lately; else 503."""
    is_serving = services.store.is_answering and is_ready(services.engine)
    return Readiness() if is_serving else unavailable_response()


@router.get(
    "/metrics",
    operation_id="readMetrics",
    response_class=Response,
    responses={200: text_of("Prometheus' text format."), **failures(401)},
)
def metrics(services: ServicesDep) -> Response:
    """Answer this process's counters and the queue's numbers in Prometheus' text format.

    Without Postgres the counters still come, with `tokenmill_database_up 0`.
    """
    body = generate_latest(services.registry) + generate_latest(_queue_registry(services))
    return Response(body, media_type=CONTENT_TYPE_LATEST)


def _queue_registry(services: Services) -> CollectorRegistry:
    try:
        with transaction(services.sessions) as session:
            samples = read_samples(session)
    except (ServiceError, DBAPIError) as error:
        logger.warning("no numbers of the queue: %s", error)
        samples = []
    is_up = Sample(name="tokenmill_database_up", help="Whether Postgres answers.", value=1 if samples else 0)
    registry = CollectorRegistry()
    registry.register(QueueCollector([is_up, *samples]))
    return registry


class QueueCollector(Collector):
    """Samples that were read already, as Prometheus' gauges, counters and histograms."""

    def __init__(self, samples: Sequence[Sample | HistogramSample]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Any] = {}
        for sample in self._samples:
            family = families.setdefault(sample.name, _family(sample))
            labels = list(sample.labels.values())
            if isinstance(sample, HistogramSample):
                family.add_metric(labels, buckets=_buckets(sample), sum_value=sample.sum)
            else:
                family.add_metric(labels, sample.value)
        return families.values()


def _family(sample: Sample | HistogramSample) -> Any:
    labels = list(sample.labels)
    if isinstance(sample, HistogramSample):
        return HistogramMetricFamily(sample.name, sample.help, labels=labels)
    kind = CounterMetricFamily if sample.is_counter else GaugeMetricFamily
    return kind(sample.name, sample.help, labels=labels)


def _buckets(sample: HistogramSample) -> list[tuple[str, float]]:
    """Return Prometheus' buckets, each of which counts everything up to its bound."""
    bounds = [*(f"{bound:g}" for bound in sample.bounds), "+Inf"]
    return list(zip(bounds, accumulate(sample.counts), strict=True))
