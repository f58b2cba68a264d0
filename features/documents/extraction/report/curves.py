"""Points of small SVG plots: risk over coverage, and calibration of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from features.documents.extraction.evaluation.metrics import Bin, RiskPoint

WIDTH = 260
HEIGHT = 160
_MAX_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A point of a plot and its tooltip."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskCurve:
    """The `points` of an SVG polyline, and the risk at its upper edge."""

    points: str
    highest: float


def risk_curve(points: Sequence[RiskPoint]) -> RiskCurve:
    """Return risk over coverage; the top edge is the highest risk, at least 5 %."""
    highest = max(0.05, *(point.risk for point in points)) if points else 0.05
    step = max(1, len(points) // _MAX_POINTS)
    kept = [*points[::step], *points[-1:]]
    spelled = (f"{WIDTH * point.coverage:.1f},{HEIGHT * (1 - point.risk / highest):.1f}" for point in kept)
    return RiskCurve(points=" ".join(spelled), highest=highest)


def calibration_dots(bins: Sequence[Bin]) -> list[Dot]:
    """Return a dot for each bin: mean score to the right, share of right values upwards."""
    return [
        Dot(
            x=round(WIDTH * each.mean_score, 1),
            y=round(HEIGHT * (1 - each.share_right), 1),
            title=f"{each.count} values: score {each.mean_score:.2f}, {each.share_right:.0%} right",
        )
        for each in bins
    ]
