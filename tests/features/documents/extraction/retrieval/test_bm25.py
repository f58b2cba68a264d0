"""Tests of BM25 over inverted files, against the plain formula, for any division of the texts into files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.retrieval.bm25 import K1, B, Bm25
from features.documents.extraction.retrieval.postings import Postings
from features.documents.extraction.retrieval.ranking import Hit, best

TEXTS = st.lists(st.lists(st.sampled_from("abcdef"), max_size=12), min_size=1, max_size=12)


def written_out(texts: Sequence[Sequence[str]], question: Sequence[str]) -> list[float]:
    mean = sum(map(len, texts)) / len(texts) or 1
    scores = []
    for text in texts:
        counts, score = Counter(text), 0.0
        for term in question:
            having = sum(term in other for other in texts)
            idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            norm = K1 * (1 - B + B * len(text) / mean)
            score += idf * counts[term] * (K1 + 1) / (counts[term] + norm) if counts[term] else 0
        scores.append(score)
    return scores


@given(texts=TEXTS, question=st.lists(st.sampled_from("abcdefg"), max_size=6), cut=st.integers(0, 12))
def test_scores_are_those_of_the_formula_in_one_file_in_two_and_in_two_that_were_merged(
    texts: list[list[str]], question: list[str], cut: int
) -> None:
    parts = [Postings.of(texts[:cut]), Postings.of(texts[cut:])]
    wanted = written_out(texts, question)
    for files in ([Postings.of(texts)], parts, [Postings.merged(parts)]):
        assert Bm25(files).scores(question) == pytest.approx(wanted, rel=1e-5)


@given(texts=TEXTS, cut=st.integers(0, 12))
def test_a_merged_file_is_the_one_that_is_made_of_all_texts(texts: list[list[str]], cut: int) -> None:
    merged = Postings.merged([Postings.of(texts[:cut]), Postings.of(texts[cut:])])
    whole = Postings.of(texts)
    assert merged.terms == whole.terms
    for name, column in whole.columns().items():
        assert np.array_equal(merged.columns()[name], column)
    again = Postings.from_columns(merged.columns())
    assert again.terms == whole.terms


def test_texts_without_a_term_of_the_question_are_not_found() -> None:
    words = Bm25([Postings.of([["a"], ["b"], ["a", "a"], []])])
    assert [hit.row for hit in words.search(["a"], 10)] == [2, 0]
    assert words.search(["z"], 10) == []
    assert words.search([], 10) == []


def test_of_equal_scores_the_first_rows_are_taken() -> None:
    scores = np.array([1, 2, 1, 2, 1, 2, 1], np.float32)
    assert best(scores, 5) == [Hit(1, 2), Hit(3, 2), Hit(5, 2), Hit(0, 1), Hit(2, 1)]
