"""Which of several places is meant by quotes that come in an order: the way through the text that goes back least.

The way from one quote to the next costs its length as a share of the text, and going back costs more; the cheapest way
through all of them is found in one sweep for each quote (dynamic programming over sorted places). Knows no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from features.documents.extraction.grounding.spans import Span

_BACK = 1.5
"""What going back, or standing still, costs beside its length: more than any way forward."""


@dataclass(slots=True)
class _Step:
    """One quote: the cheapest way to each of its places, and over which place of the quote before."""

    spans: Sequence[Span]
    costs: list[float]
    previous: list[int | None]


def choose_in_order(options: Sequence[Sequence[Span]], length: int) -> list[Span | None]:
    """Return one place for each quote, None for those that have none; places must be sorted by their start."""
    scale = 1.0 / max(1, length)
    steps: list[_Step] = []
    for spans in options:
        if spans:
            steps.append(_step(steps[-1] if steps else None, spans, scale))
    chosen = _trace(steps)
    return [next(chosen) if spans else None for spans in options]


def _step(before: _Step | None, spans: Sequence[Span], scale: float) -> _Step:
    if before is None:
        return _Step(spans, [span.start * scale for span in spans], [None] * len(spans))
    forward, backward = _forward(before, spans, scale), _backward(before, spans, scale)
    best = [min(ways, key=lambda way: way[0]) for ways in zip(forward, backward, strict=True)]
    return _Step(spans, [cost for cost, _ in best], [index for _, index in best])


def _forward(before: _Step, spans: Sequence[Span], scale: float) -> list[tuple[float, int | None]]:
    """Return for each place the cheapest way from one that ends before it."""
    ordered = sorted(range(len(before.spans)), key=lambda index: before.spans[index].end)
    ways: list[tuple[float, int | None]] = []
    best, best_index, following = float("inf"), None, 0
    for span in spans:
        while following < len(ordered) and before.spans[ordered[following]].end <= span.start:
            index = ordered[following]
            cost = before.costs[index] - before.spans[index].end * scale
            if cost < best:
                best, best_index = cost, index
            following += 1
        ways.append((best + span.start * scale, best_index))
    return ways


def _backward(before: _Step, spans: Sequence[Span], scale: float) -> list[tuple[float, int | None]]:
    """Return for each place the cheapest way back from one that ends behind its start."""
    ordered = sorted(range(len(before.spans)), key=lambda index: -before.spans[index].end)
    ways: list[tuple[float, int | None]] = []
    best, best_index, following = float("inf"), None, 0
    for span in reversed(spans):
        while following < len(ordered) and before.spans[ordered[following]].end > span.start:
            index = ordered[following]
            cost = before.costs[index] + before.spans[index].end * scale
            if cost < best:
                best, best_index = cost, index
            following += 1
        ways.append((best - span.start * scale + _BACK, best_index))
    return ways[::-1]


def _trace(steps: Sequence[_Step]) -> Iterator[Span]:
    """Yield the places of the cheapest way, the first quote's first."""
    found: list[Span] = []
    index: int | None = None
    for step in reversed(steps):
        if index is None:
            index = min(range(len(step.spans)), key=step.costs.__getitem__)
        found.append(step.spans[index])
        index = step.previous[index]
    return reversed(found)
