"""Tests of the measures, against values known from their definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.evaluation.metrics import (
    Rates,
    auroc,
    brier,
    calibration_bins,
    calibration_error,
    risk_coverage,
    share_automated,
    span_overlap,
    text_likeness,
)
from features.documents.extraction.grounding.spans import Span


def test_rates_follow_from_their_counts() -> None:
    rates = Rates(right=6, wrong=2, missed=4)
    assert (rates.precision, rates.recall) == (0.75, 0.6)
    assert rates.f1 == pytest.approx(2 / 3)
    assert (Rates().precision, Rates().recall, Rates().f1) == (None, None, None)


def test_texts_are_alike_by_their_characters_or_not_at_all() -> None:
    assert text_likeness("Miller Ltd.", "MILLER LTD") == 1.0
    assert text_likeness("Miller", "Muller") == pytest.approx(5 / 6)
    assert text_likeness("Miller", "Brown") == 0.0


def test_spans_overlap_by_characters() -> None:
    assert span_overlap([Span(0, 4)], [Span(2, 6)]) == pytest.approx(2 / 6)
    assert span_overlap([Span(0, 2), Span(4, 6)], [Span(0, 2)]) == 0.5
    assert span_overlap([], []) == 0.0


def test_scores_that_mean_what_they_say_have_no_calibration_error() -> None:
    scores, is_right = [0.75] * 4, [True, True, True, False]
    assert calibration_error(scores, is_right) == pytest.approx(0.0)
    assert calibration_error([1.0] * 4, is_right) == pytest.approx(0.25)
    assert brier([1.0, 0.0], [True, True]) == 0.5
    assert [each.count for each in calibration_bins([0.05, 0.95, 1.0], [True, True, False])] == [1, 2]
    assert (calibration_error([], []), brier([], [])) == (None, None)


def test_auroc_counts_pairs_and_ties_as_halves() -> None:
    assert auroc([0.9, 0.8, 0.1], [True, True, False]) == 1.0
    assert auroc([0.1, 0.9], [True, False]) == 0.0
    assert auroc([0.5, 0.5], [True, False]) == 0.5
    assert auroc([0.5], [True]) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=20))
def test_auroc_is_the_share_of_ordered_pairs(values: list[tuple[int, bool]]) -> None:
    scores, is_right = [score / 5 for score, _ in values], [right for _, right in values]
    pairs = [
        1.0 if one > other else 0.5 if one == other else 0.0
        for one, is_one in zip(scores, is_right, strict=True)
        for other, is_other in zip(scores, is_right, strict=True)
        if is_one and not is_other
    ]
    assert auroc(scores, is_right) == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


def test_what_may_go_on_unseen_is_the_most_with_little_enough_risk() -> None:
    points = risk_coverage([0.9, 0.8, 0.8, 0.3], [True, True, False, True])
    assert [(point.threshold, point.coverage) for point in points] == [(0.9, 0.25), (0.8, 0.75), (0.3, 1.0)]
    assert points[1].risk == pytest.approx(1 / 3)
    assert (share_automated(points), share_automated(points, target=0.75)) == (0.25, 1.0)
    assert share_automated(risk_coverage([0.9], [False])) == 0.0
    assert risk_coverage([], []) == []
