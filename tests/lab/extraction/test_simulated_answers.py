"""Tests of the simulated answers: their errors are as drawn, and calibrated scores tell them from right ones."""

from __future__ import annotations

from collections import Counter

import pytest

from features.documents.extraction.scoring.calibration import fit
from lab.extraction.simulated_answers.answers import Error, Outcome, outcomes
from lab.extraction.simulated_answers.papers import ALL_LABELS, FIELDS, KNOWN_LABELS, papers
from lab.extraction.simulated_answers.study import auroc_of


@pytest.fixture(scope="module")
def measured() -> tuple[list[Outcome], list[Outcome]]:
    known = outcomes(papers(24, of_each=4, seed=0, num_labels=KNOWN_LABELS), repeat=0.5)
    return known, outcomes(papers(24, of_each=4, seed=1, num_labels=ALL_LABELS), repeat=0.5)


def test_a_quarter_is_wrong_in_four_ways(measured: tuple[list[Outcome], list[Outcome]]) -> None:
    counts = Counter(each.error for each in measured[0])
    assert sum(counts.values()) == 24 * 4 * len(FIELDS)
    assert 0.2 < 1 - counts[None] / sum(counts.values()) < 0.3
    assert all(counts[error] > 20 for error in Error)
    assert all((each.error is None) is each.judged.is_right for each in measured[0])


@pytest.mark.parametrize(
    ("error", "least"),
    [(Error.OTHER_DOCUMENT, 0.99), (Error.CHANGED, 0.98), (Error.OTHER_VALUE, 0.9), (Error.NULL, 0.75)],
)
def test_scores_tell_each_error_on_layouts_that_were_not_seen(
    measured: tuple[list[Outcome], list[Outcome]], error: Error, least: float
) -> None:
    known, others = measured
    learned = fit([each.judged for each in known])
    scores = [learned.score(each.judged.features) for each in others]
    assert auroc_of(others, scores, error) > least


def test_a_paper_states_its_fields_and_values_beside_them() -> None:
    for paper in papers(6, of_each=2, seed=3, num_labels=ALL_LABELS):
        for stated in [*paper.fields.values(), *paper.beside.values()]:
            assert stated is None or stated.quote in paper.text
