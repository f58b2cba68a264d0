from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.texts import TOKENIZERS, match, stream_text


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab漢é😀\n ", max_size=20), st.text(alphabet="xy字😀", min_size=1, max_size=6))
def test_any_text_comes_out_whole(text: str, prompt: str) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert stream_text(tokenizer, tokenizer.encode(prompt).ids, tokenizer.encode(text).ids) == text


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="ab", max_size=30),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 4), max_size=30),
)
def test_how_text_is_cut_into_tokens_does_not_change_what_is_shown_by_single_letters(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    pieces.append(rest)
    assert match(stops, pieces) == match(stops, list(text))
