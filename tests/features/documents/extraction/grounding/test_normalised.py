"""Tests of the two normal forms of a text, and of mapping their positions back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.grounding.normalised import Target

TEXTS = st.text(
    alphabet=st.one_of(
        st.sampled_from("aZ ß\ufb01İΣ09.,'’\u00a0\u202f-\n\t“”½Ǆ한語\u0301"), st.characters(codec="utf-8")
    ),
    max_size=60,
)


@pytest.mark.parametrize(
    ("text", "plain", "squeezed"),
    [
        ("The  OFFICE\nof", "the office of", "theofficeof"),
        ("“Of\ufb01ce”", '"office"', "office"),
        ("Straße", "strasse", "strasse"),
        ("con-\n  tinued", "continued", "continued"),
        ("1,234.50 and 1.234,50", "1234.50 and 1234,50", "1234.50and1234,50"),
        ("1’000 x 2\u202f000", "1000 x 2000", "1000x2000"),
        ("17   605.40: 4,031", "17 605.40: 4031", "17 605.40 4031"),
        ("Nr.: 4-711 / b", "nr.: 4-711 / b", "nr4 711b"),
        ("", "", ""),
    ],
)
def test_what_two_prints_differ_in_is_gone(text: str, plain: str, squeezed: str) -> None:
    target = Target(text)
    assert (target.plain, target.squeezed) == (plain, squeezed)


@given(TEXTS)
def test_every_character_of_a_level_leads_back_into_the_text_in_order(text: str) -> None:
    target = Target(text)
    places = [target.from_plain(index, index + 1) for index in range(len(target.plain))]
    assert all(0 <= start < end <= len(text) for start, end in places)
    assert places == sorted(places)
    squeezed = [target.plain_from_squeezed(index, index + 1) for index in range(len(target.squeezed))]
    assert all(0 <= start < end <= len(target.plain) for start, end in squeezed)
    assert squeezed == sorted(squeezed)


@given(TEXTS)
def test_a_letter_or_digit_leads_back_to_what_it_was_made_from(text: str) -> None:
    target = Target(text)
    for index, sign in enumerate(target.plain):
        if sign.isalnum():
            start, end = target.from_plain(index, index + 1)
            assert sign in Target(text[start:end]).plain


@given(TEXTS, st.data())
def test_a_stretch_leads_back_to_one_that_holds_all_of_it(text: str, data: st.DataObject) -> None:
    target = Target(text)
    start = data.draw(st.integers(0, len(target.plain)))
    end = data.draw(st.integers(start, len(target.plain)))
    if start < end:
        first, last = target.from_plain(start, end)
        assert first == target.from_plain(start, start + 1)[0]
        assert last == target.from_plain(end - 1, end)[1]
