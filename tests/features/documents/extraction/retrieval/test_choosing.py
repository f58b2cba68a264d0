"""Tests of choosing what fits into a prompt, and of reporting the rest."""

from __future__ import annotations

from features.documents.extraction.retrieval.choosing import LeftOut, choose
from features.documents.extraction.retrieval.ranking import Hit
from features.documents.extraction.retrieval.segment import Place

RANKED = [
    (Hit(number, 9.0 - number), Place(document=name, start=start, end=start + 5, num_tokens=tokens))
    for number, (name, start, tokens) in enumerate(
        [("b", 50, 40), ("a", 30, 40), ("b", 10, 90), ("b", 20, 20), ("a", 0, 1)]
    )
]


def test_passages_stand_in_the_order_of_their_document_under_the_budget() -> None:
    choice = choose(RANKED, max_tokens=100, top_k=3)
    assert [(one.place.document, one.place.start) for one in choice.chosen] == [("b", 20), ("b", 50), ("a", 30)]
    assert choice.num_tokens == 100


def test_what_is_left_out_is_told_with_its_rank_and_why() -> None:
    choice = choose(RANKED, max_tokens=100, top_k=3)
    assert [(one.rank, one.left_out) for one in choice.dropped] == [(2, LeftOut.TOKENS), (4, LeftOut.RANK)]


def test_no_room_for_anything_chooses_nothing() -> None:
    choice = choose(RANKED, max_tokens=0, top_k=3)
    assert (choice.chosen, len(choice.dropped), choice.num_tokens) == ((), 5, 0)
