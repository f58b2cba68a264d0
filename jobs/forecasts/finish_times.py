"""Forecast when each batch of one model ends, if nothing else comes, with the fair order as a flow of tokens.

Pure: loads in, forecasts out; no SQL, no clock. Tenants are served as in `fair_order`, but without ageing and caps, and
by tokens instead of chunks: a tenant's work advances its virtual time, and the tenants with the lowest share the
workers by weight. So the end of a batch has a virtual time, and everything that all queues received by then is served
before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from jobs.chunks.fair_order import CLASSES
from jobs.states import Priority

FARTHEST_SECONDS = 10 * 365 * 86_400
"""Ten years. A later end is not reported: no rate is stable for so long, and calendars end with the year 9999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoad:
    """The rest of one batch, in tokens to compute."""

    batch_id: str
    tenant_id: str
    priority: Priority
    weight: float
    virtual_time: float
    """Its tenant's, in this class."""
    expires_at: datetime
    ready_tokens: float = 0.0
    """In chunks that wait for a worker."""
    leased_tokens: float = 0.0
    """In unfinished lines that workers hold."""
    leased_lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast of one batch."""

    batch_id: str
    tokens: float
    """Served until its last line ends, its own included; once no chunk of it waits, its own alone."""
    tokens_to_claim: float
    """Claimed until its last chunk is, its own included."""
    tokens_ahead: Mapping[Priority, float]
    """Those of them claimed before its next chunk, by class; classes without any are left out."""
    position: int
    """How many batches have their next chunk before it; 0 for a batch that workers are running."""
    share: float
    """Its tenant's share of the workers, among the tenants of its class that have work now."""


def forecast(loads: Sequence[BatchLoad]) -> list[Forecast]:
    """Forecast every batch of one model, best first."""
    leased = sum(load.leased_tokens for load in loads)
    forecasts: list[Forecast] = []
    ahead: dict[Priority, float] = {}
    for priority in CLASSES:
        own = [load for load in loads if load.priority is priority]
        total = sum(load.ready_tokens for load in own)
        better = sum(ahead.values())
        for load, spot in _in_order(own):
            tokens_to_claim = better + spot.tokens_to_end if load.ready_tokens else 0.0
            forecasts.append(
                Forecast(
                    batch_id=load.batch_id,
                    tokens=leased + tokens_to_claim if load.ready_tokens else load.leased_tokens,
                    tokens_to_claim=tokens_to_claim,
                    tokens_ahead={} if load.leased_lines else _counted(ahead, priority, spot.tokens_ahead),
                    position=0 if load.leased_lines else len(forecasts),
                    share=spot.share,
                )
            )
        if total:
            ahead[priority] = total
    return forecasts


def _counted(better: Mapping[Priority, float], priority: Priority, own: float) -> dict[Priority, float]:
    return {name: tokens for name, tokens in {**better, priority: own}.items() if tokens > 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """A batch's position among the ready work of its class."""

    starts_at: float
    """Virtual time of its first ready token."""
    tokens_ahead: float
    tokens_to_end: float
    share: float


def _in_order(loads: Sequence[BatchLoad]) -> list[tuple[BatchLoad, _Spot]]:
    """Return the batches of one class with their positions, in the order of their next chunks."""
    queues: dict[str, list[BatchLoad]] = defaultdict(list)
    for load in sorted(loads, key=lambda load: (load.expires_at, load.batch_id)):
        queues[load.tenant_id].append(load)
    spans = {load.batch_id: span for queue in queues.values() for load, span in _spans(queue)}
    served = _served([(queue[0].virtual_time, queue[0].weight, _ready(queue)) for queue in queues.values()], spans)
    weights = {tenant_id: queue[0].weight for tenant_id, queue in queues.items()}
    total = sum(weights.values())
    spots = [
        (
            load,
            _Spot(
                starts_at=spans[load.batch_id][0],
                tokens_ahead=served[spans[load.batch_id][0]],
                tokens_to_end=served[spans[load.batch_id][1]],
                share=weights[load.tenant_id] / total,
            ),
        )
        for load in loads
    ]
    return sorted(spots, key=lambda spot: (spot[1].starts_at, spot[0].expires_at, spot[0].batch_id))


def seconds_to_serve(tokens: float, *, tokens_per_second: float) -> float | None:
    """Return how long this many tokens take; None where that exceeds `FARTHEST_SECONDS`."""
    return tokens / tokens_per_second if tokens < FARTHEST_SECONDS * tokens_per_second else None


def _ready(queue: Iterable[BatchLoad]) -> float:
    return sum(load.ready_tokens for load in queue)


def _spans(queue: Sequence[BatchLoad]) -> Iterator[tuple[BatchLoad, tuple[float, float]]]:
    """Yield one tenant's batches with the interval of virtual time in which their ready tokens are served."""
    level = queue[0].virtual_time
    for load in queue:
        following = level + load.ready_tokens / load.weight
        yield load, (level, following)
        level = following


def _served(
    queues: Sequence[tuple[float, float, float]], spans: Mapping[str, tuple[float, float]]
) -> dict[float, float]:
    """Return for each virtual time of `spans` how many tokens all queues have received by then.

    A queue is (virtual time, weight, tokens): it receives its weight per unit of virtual time from its own time to the
    end of its work. One sweep over the times, in order.
    """
    slopes: dict[float, float] = defaultdict(float)
    for start, weight, tokens in queues:
        slopes[start] += weight
        slopes[start + tokens / weight] -= weight
    levels = sorted(slopes.keys() | {level for span in spans.values() for level in span})
    tokens_by_level, tokens, slope, before = {}, 0.0, 0.0, levels[0] if levels else 0.0
    for level in levels:
        tokens += slope * (level - before)
        slope, before = slope + slopes.get(level, 0.0), level
        tokens_by_level[level] = tokens
    return tokens_by_level
