"""Chooses one of several places for each quote of a sequence: the path through the text that goes back least.

A step from one quote to the next costs its length as a share of the text, and more if it goes back. The cheapest path
is found in one sweep for each quote (dynamic programming over sorted places).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from features.documents.extraction.grounding.spans import Span

_BACK = 1.5
"""Extra cost of going back or staying in place: more than any step forward."""


@dataclass(slots=True)
class _Step:
    """Cheapest paths to each place of one quote, with the preceding place on each path."""

    spans: Sequence[Span]
    costs: list[float]
    previous: list[int | None]


def choose_in_order(options: Sequence[Sequence[Span]], length: int) -> list[Span | None]:
    """Return one place for each quote, None for quotes without places; places must be sorted by start."""
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
    """Return for each place the cheapest path from a place that ends before it."""
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
    """Return for each place the cheapest path from a place that ends after its start."""
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
    """Yield the places of the cheapest path in order of the quotes."""
    places: list[Span] = []
    index: int | None = None
    for step in reversed(steps):
        if index is None:
            index = min(range(len(step.spans)), key=step.costs.__getitem__)
        places.append(step.spans[index])
        index = step.previous[index]
    return reversed(places)
