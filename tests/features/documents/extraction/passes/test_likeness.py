"""Tests of choosing examples for a document."""

from __future__ import annotations

from features.documents.extraction.passes.examples import MAX_EXAMPLES, Example
from features.documents.extraction.passes.likeness import choose_examples

RECEIPT = Example(document_text="** Ash Ltd **\n2 x Milk 3.00\nTotal 3.00", fields={})
LETTER = Example(document_text="Dear customer,\nhere is our invoice 17 of 4 May\nKind regards", fields={})
FORM = Example(document_text="Seller    Birch\nNumber    88\nDate    2024-01-02", fields={})
SLIP = Example(document_text="Packing slip\nPieces 4", fields={})
POOL = (RECEIPT, LETTER, FORM, SLIP)


def test_a_document_is_shown_the_example_of_its_own_form() -> None:
    assert choose_examples("Dear customer,\nhere is our invoice 2044 of 9 June", POOL, count=1) == (LETTER,)
    assert choose_examples("Seller    Cedar\nNumber    12\nDate    2023-11-30", POOL, count=1) == (FORM,)


def test_no_document_is_its_own_example() -> None:
    assert LETTER not in choose_examples(LETTER.document_text, POOL)


def test_as_many_are_shown_as_a_prompt_may_have_in_one_order_for_all() -> None:
    chosen = choose_examples("Packing slip Dear customer Total", POOL)
    assert len(chosen) == MAX_EXAMPLES
    assert list(chosen) == [example for example in POOL if example in chosen]
    assert choose_examples("anything", ()) == ()
