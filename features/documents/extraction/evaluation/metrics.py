"""Measures of texts, spans and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Levenshtein

from features.documents.extraction.fields.values import normal_text
from features.documents.extraction.grounding.spans import Span

ANLS_FROM = 0.5
"""A lower similarity counts as 0 (Biten et al. 2019)."""
_BINS = 10


def text_likeness(one: str, other: str) -> float:
    """Return the normalised Levenshtein similarity of two texts after normalisation, 0 below ANLS_FROM."""
    like = Levenshtein.normalized_similarity(normal_text(one), normal_text(other))
    return like if like >= ANLS_FROM else 0.0


def span_overlap(ones: Sequence[Span], others: Sequence[Span]) -> float:
    """Return the number of shared characters as a share of the characters in either (IoU)."""
    own = {index for span in ones for index in range(span.start, span.end)}
    other = {index for span in others for index in range(span.start, span.end)}
    return len(own & other) / len(own | other) if own or other else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Counts of values, and their rates; None if there is nothing to count."""

    right: int = 0
    wrong: int = 0
    """Extracted, but different from gold, which may be null."""
    missed: int = 0
    """In gold, but missing or different in the record."""

    @property
    def precision(self) -> float | None:
        """Return the share of extracted values that are right."""
        return _share(self.right, self.right + self.wrong)

    @property
    def recall(self) -> float | None:
        """Return the share of gold values that were extracted."""
        return _share(self.right, self.right + self.missed)

    @property
    def f1(self) -> float | None:
        """Return the harmonic mean of precision and recall."""
        return _share(2 * self.right, 2 * self.right + self.wrong + self.missed)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def brier(scores: Sequence[float], is_right: Sequence[bool]) -> float | None:
    """Return the mean squared difference between scores and outcomes."""
    if not scores:
        return None
    return float(np.mean((np.asarray(scores) - np.asarray(is_right, dtype=np.float64)) ** 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Values with similar scores: their mean score and the share that is right."""

    count: int
    mean_score: float
    share_right: float


def calibration_bins(scores: Sequence[float], is_right: Sequence[bool]) -> list[Bin]:
    """Return values in ten bins of equal width, without empty ones."""
    own, right = np.asarray(scores, dtype=np.float64), np.asarray(is_right, dtype=np.float64)
    indexes = np.minimum((own * _BINS).astype(int), _BINS - 1)
    groups = [indexes == index for index in range(_BINS) if (indexes == index).any()]
    return [
        Bin(count=int(group.sum()), mean_score=float(own[group].mean()), share_right=float(right[group].mean()))
        for group in groups
    ]


def calibration_error(scores: Sequence[float], is_right: Sequence[bool]) -> float | None:
    """Return the expected calibration error over ten bins (Guo et al. 2017)."""
    bins = calibration_bins(scores, is_right)
    total = sum(each.count for each in bins)
    return _share(sum(each.count * abs(each.mean_score - each.share_right) for each in bins), total)


def auroc(scores: Sequence[float], is_right: Sequence[bool]) -> float | None:
    """Return the probability that a right value scores higher than a wrong one, ties as halves; None without both."""
    own, right = np.asarray(scores, dtype=np.float64), np.asarray(is_right, dtype=bool)
    num_right, num_wrong = int(right.sum()), int((~right).sum())
    if not num_right or not num_wrong:
        return None
    _, places, counts = np.unique(own, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return float((ranks[right].sum() - num_right * (num_right + 1) / 2) / (num_right * num_wrong))


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskPoint:
    """The share of values with at least this score, and the share of wrong values among them."""

    threshold: float
    coverage: float
    risk: float


def risk_coverage(scores: Sequence[float], is_right: Sequence[bool]) -> list[RiskPoint]:
    """Return a point for each distinct score, highest first."""
    own, right = np.asarray(scores, dtype=np.float64), np.asarray(is_right, dtype=np.float64)
    order = np.argsort(-own, kind="stable")
    own, wrong = own[order], np.cumsum(1 - right[order])
    if not len(own):
        return []
    ends = np.nonzero(np.append(own[1:] != own[:-1], True))[0]
    return [
        RiskPoint(
            threshold=float(own[end]), coverage=(int(end) + 1) / len(own), risk=float(wrong[end]) / (int(end) + 1)
        )
        for end in ends
    ]


def share_automated(points: Sequence[RiskPoint], *, target: float = 0.99) -> float:
    """Return the largest share of values that could go without review with `target` of them right."""
    return max((point.coverage for point in points if point.risk <= 1 - target + 1e-12), default=0.0)
