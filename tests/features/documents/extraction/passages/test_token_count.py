"""Tests that tokens are counted as by a model, and no passage ever has more of them than allowed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from features.documents.extraction.documents.document import Heading
from features.documents.extraction.errors import PassageError
from features.documents.extraction.passages.cutting import Cutter
from features.documents.extraction.passages.token_count import TokenCount
from tests.features.documents.extraction.passages.builders import byte_tokenizer, word_tokenizer

MADE = (byte_tokenizer, word_tokenizer)
TEXTS = st.text(alphabet="abet .,\n#ßéİ漢🙂\u200d-\t", max_size=600)


@given(
    made=st.sampled_from(MADE),
    text=TEXTS,
    max_tokens=st.integers(16, 60),
    overlap=st.integers(0, 4),
    cuts=st.lists(st.integers(0, 600)),
)
def test_no_passage_has_more_tokens_of_a_tokenizer_than_allowed_headings_counted(
    made: Callable[[], bytes], text: str, max_tokens: int, overlap: int, cuts: list[int]
) -> None:
    headings = [
        Heading(start=cut, end=min(cut + 9, len(text)), level=1 + cut % 3)
        for cut in sorted(set(cuts))
        if cut < len(text)
    ]
    found = Cutter(count=TokenCount(made()), max_tokens=max_tokens, overlap_tokens=overlap).cut(text, headings)
    oracle = Tokenizer.from_buffer(made())
    oracle.no_truncation()
    oracle.no_padding()
    for one in found:
        assert one.num_tokens == len(oracle.encode(one.shown(text), add_special_tokens=False).ids) <= max_tokens


@pytest.mark.parametrize("made", MADE)
def test_a_count_has_no_special_tokens_and_no_limit(made: Callable[[], bytes]) -> None:
    count = TokenCount(made())
    assert [count(text) for text in ("", "a", "a\na")] == [0, 1, count("a") + count("\na")]
    assert count("a word " * 20) >= 40


def test_a_file_that_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(PassageError, match=r"tokenizers 0\.\S+ cannot read it"):
        TokenCount(b'{"version": "9.0"}')


def test_a_long_text_that_fits_as_a_whole_is_one_passage() -> None:
    text = "a" * 20_000  # to this tokenizer one unknown word
    (found,) = Cutter(count=TokenCount(word_tokenizer()), max_tokens=16).cut(text)
    assert (found.start, found.end, found.num_tokens) == (0, len(text), 1)
