"""Tests of a document's canonical text, and of the new positions of raw characters."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.documents.canonical import canonical

TEXTS = st.text(
    st.sampled_from("ae\u0301\u0323\u00ad\r\n\x00\u1100\u1161\u11a8\ufb2c\u212b\u09c7\u09be é😀"), max_size=40
)


def plain(raw: str) -> str:
    """Return the same without offsets."""
    text = re.sub("\r\n?", "\n", raw).replace("\u00ad", "").replace("\x00", "")
    return unicodedata.normalize("NFC", text)


@given(TEXTS)
def test_the_canonical_text_is_composed_with_line_feeds_and_without_soft_hyphens(raw: str) -> None:
    assert canonical(raw).text == plain(raw)


@given(TEXTS)
def test_offsets_never_step_back_and_end_at_the_end(raw: str) -> None:
    found = canonical(raw)
    steps = found.offsets.tolist()
    assert len(steps) == len(raw) + 1
    assert steps == sorted(steps)
    assert steps[-1] == len(found.text)


@given(TEXTS)
def test_the_canonical_text_stays_as_it_is(raw: str) -> None:
    text = canonical(raw).text
    again = canonical(text)
    assert again.text == text
    assert again.offsets.tolist() == list(range(len(text) + 1))


@pytest.mark.parametrize(
    ("raw", "mark", "text", "there"),
    [
        ("Invo\u00adice 7", 9, "Invoice 7", 8),
        ("a\r\nb", 3, "a\nb", 2),
        ("Cafe\u0301 7", 6, "Café 7", 5),
        ("Cafe\u0301 7", 4, "Café 7", 3),
        ("e\u00ad\u0301x", 3, "éx", 1),
    ],
)
def test_an_offset_leads_to_the_same_character(raw: str, mark: int, text: str, there: int) -> None:
    found = canonical(raw)
    assert (found.text, int(found.offsets[mark])) == (text, there)


def test_half_of_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert canonical("a\ud800b").text == "a\ufffdb"
