"""Tests of a segment and the texts of its passages in one object that is read in parts."""

from __future__ import annotations

import pytest

from features.documents.extraction.errors import RetrievalError
from features.documents.extraction.retrieval.archive import SIZES_BYTES, PassageText, archive, head_bytes, read_head
from tests.features.documents.extraction.retrieval.builders import WORDS, segment

TEXTS = {"a": "the first passage", "b": "", "c": "naïve \U0001f600 words"}


def stored() -> bytes:
    texts = [PassageText(headings=("one", "two"), text=text) for text in TEXTS.values()]
    return archive(segment(TEXTS), ["A", "B", "C"], texts)


def test_the_head_is_enough_to_find_each_text() -> None:
    whole = stored()
    head = whole[: head_bytes(whole[:SIZES_BYTES])]
    found = read_head(head)
    assert (found.names, found.segment.documents, found.segment.signature) == (("A", "B", "C"), ("a", "b", "c"), WORDS)
    assert found.size_bytes == len(head)
    ranges = [found.record_range(row) for row in range(3)]
    texts = [PassageText.from_bytes(whole[start:end]) for start, end in ranges]
    assert [text.text for text in texts] == list(TEXTS.values())
    assert texts[0].shown == "one > two\nthe first passage"
    assert ranges[-1][1] == len(whole)


@pytest.mark.parametrize("wrong", [b"", b"short", b"\x10" + bytes(15) + b"x" * 16])
def test_other_bytes_are_refused(wrong: bytes) -> None:
    with pytest.raises(RetrievalError):
        read_head(wrong)
