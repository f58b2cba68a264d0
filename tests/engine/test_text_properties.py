"""Tests that text equals the tokenizer's own decode of all tokens, for any tokens in any order of arrival."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from engine.detokenizer import REPLACEMENT, Detokenizer, text_of_token
from engine.params import SamplingParams
from engine.text import TextStream
from tests.engine.texts import ALL_TOKENIZERS, TOKENIZERS, ids_of, match, pieces_text, stream_text

KINDS = sorted(ALL_TOKENIZERS)
UNKNOWN = 100_000
"""An id that models have and their tokenizers lack, where a vocabulary is padded."""


def _favourites(kind: str) -> list[int]:
    """Return the tokens that decoders treat specially, and a few plain ones."""
    words = ("▁", "▁▁", "▁engine", "▁prompt", "ing", "a", "b", ",", "漢", "Ġthe", "Ġ", "¢æ", "Ģðŀ", "æ¼¢æ")
    added = ("<s>", "</s>", "<|end|>", "<tool>", REPLACEMENT)
    byte_tokens = [f"<0x{byte:02X}>" for byte in (0x0A, 0x20, 0x41, *"漢😀é".encode(), 0xFF, 0xC3)]
    spelled_out = ALL_TOKENIZERS[kind].encode("漢😀é\n a").ids
    return sorted({*ids_of(kind, *words, *added, *byte_tokens), *spelled_out, UNKNOWN})


FAVOURITES = {kind: _favourites(kind) for kind in KINDS}


def _tokens(kind: str, max_size: int) -> st.SearchStrategy[list[int]]:
    any_token = st.integers(0, ALL_TOKENIZERS[kind].get_vocab_size() - 1)
    favourites = st.sampled_from(FAVOURITES[kind])
    return st.lists(st.one_of(favourites, favourites, favourites, any_token), max_size=max_size)


def _cut(output: list[int], cuts: list[int]) -> list[list[int]]:
    pieces = []
    for size in cuts:
        pieces.append(output[:size])
        output = output[size:]
    return [*pieces, output]


def _ends_whole(tokenizer: Tokenizer, prompt: list[int], *, skip: bool) -> bool:
    """Tell whether a prompt ends in a whole character, and in no byte token: its output might go on with the run."""
    shown = [token for token in prompt if tokenizer.decode([token, token], skip_special_tokens=skip)]
    last = (tokenizer.id_to_token(shown[-1]) if shown else None) or ""
    text = tokenizer.decode(prompt, skip_special_tokens=skip)
    return not (last.startswith("<0x") or text.endswith(REPLACEMENT))


def _past_prompt(tokenizer: Tokenizer, prompt: list[int], output: list[int], *, skip: bool) -> str:
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole: str = tokenizer.decode([*prompt, *output], skip_special_tokens=skip)
    assert whole.startswith(before)
    return whole[len(before) :]


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(KINDS), st.booleans(), st.lists(st.integers(0, 5), max_size=12))
def test_any_split_of_any_tokens_gives_the_full_decode(
    data: st.DataObject, kind: str, skip: bool, cuts: list[int]
) -> None:
    tokenizer = ALL_TOKENIZERS[kind]
    prompt, output = data.draw(_tokens(kind, 12)), data.draw(_tokens(kind, 40))
    got = pieces_text(tokenizer, prompt, _cut(output, cuts), skip=skip)
    assert got == pieces_text(tokenizer, prompt, [output], skip=skip)
    assert got == stream_text(tokenizer, prompt, output, skip=skip)
    assert got == Detokenizer(tokenizer, prompt, skip_special_tokens=skip).whole(output)
    if _ends_whole(tokenizer, prompt, skip=skip):
        assert got == _past_prompt(tokenizer, prompt, output, skip=skip)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(KINDS), st.lists(st.integers(0, 5), max_size=12), st.integers(0, 6), st.booleans())
def test_a_stop_string_ends_the_text_at_the_same_token_however_tokens_arrive(
    data: st.DataObject, kind: str, cuts: list[int], min_tokens: int, include: bool
) -> None:
    tokenizer = ALL_TOKENIZERS[kind]
    prompt = data.draw(_tokens(kind, 6).filter(lambda ids: _ends_whole(tokenizer, ids, skip=True)))
    output = data.draw(_tokens(kind, 24))
    stops = data.draw(st.lists(st.text(alphabet="ab, \n漢é", min_size=1, max_size=3), min_size=1, max_size=3))
    params = SamplingParams(
        stop=stops, min_tokens=min_tokens, max_tokens=100, include_stop_str_in_output=include, temperature=0.0
    )
    stream, num_kept = TextStream(tokenizer, prompt, params), 0
    for piece in _cut(output, cuts):
        num_kept += stream.push(piece)
    stream.finish()
    assert (stream.text, stream.matched_stop, num_kept) == _until_stop(tokenizer, prompt, output, params)


def _until_stop(
    tokenizer: Tokenizer, prompt: list[int], output: list[int], params: SamplingParams
) -> tuple[str, str | None, int]:
    """Return text, stop string and number of tokens of the shortest beginning of an output that holds a stop string."""
    early = [_past_prompt(tokenizer, prompt, output[:count], skip=True) for count in range(params.min_tokens + 1)]
    exempt = max(len(text.rstrip(REPLACEMENT)) for text in early)  # what may change holds no stop string yet
    for count in range(params.min_tokens + 1, len(output) + 1):
        text = _past_prompt(tokenizer, prompt, output[:count], skip=True)
        found = [(text.find(stop, max(0, exempt - len(stop) + 1)), stop) for stop in params.stop]
        ended = min(((at + len(stop), at, stop) for at, stop in found if at >= 0), default=None)
        if ended is not None:
            end, start, stop = ended
            return text[: end if params.include_stop_str_in_output else start], stop, count
    return _past_prompt(tokenizer, prompt, output, skip=True), None, len(output)


@pytest.mark.parametrize("skip", [True, False])
def test_the_space_after_a_special_token_stays(skip: bool) -> None:
    tokenizer, output = ALL_TOKENIZERS["llama-2"], ids_of("llama-2", "▁engine", "<|end|>", "▁prompt")
    text = "engine prompt" if skip else "engine<|end|> prompt"
    assert stream_text(tokenizer, [], output, skip=skip) == text == tokenizer.decode(output, skip_special_tokens=skip)


def test_a_prompt_that_ends_in_skipped_tokens_is_still_what_the_text_goes_on_after() -> None:
    word, special = ids_of("llama-2", "▁engine", "<|end|>")
    assert stream_text(ALL_TOKENIZERS["llama-2"], [word, *[special] * 40], [word]) == " engine"


def test_a_run_of_bytes_that_turns_out_to_be_no_utf8_is_what_the_tokenizer_makes_of_it() -> None:
    (letter,) = ids_of("llama-2", "a")
    output = [letter, *"漢漢".encode(), 0xFF, letter]
    assert stream_text(ALL_TOKENIZERS["llama-2"], [], output) == "a" + REPLACEMENT * 7 + "a"


def test_a_stop_string_in_an_open_run_of_bytes_ends_the_text_at_once() -> None:
    (letter,) = ids_of("llama-2", "a")
    stream = TextStream(ALL_TOKENIZERS["llama-2"], [], SamplingParams(stop=["\n"]))
    assert [stream.push([letter]), stream.push([0x0A, letter])] == [1, 1]
    assert (stream.text, stream.matched_stop) == ("a", "\n")


@pytest.mark.parametrize(
    ("kind", "spelled", "num_early"), [("byte-fallback", (REPLACEMENT, "<0x20>"), 2), ("llama-2", ("<0x20>",) * 2, 1)]
)
def test_what_comes_early_in_an_open_run_of_bytes_is_counted_as_it_is_shown(
    kind: str, spelled: tuple[str, ...], num_early: int
) -> None:
    tokenizer, output = ALL_TOKENIZERS[kind], ids_of(kind, *spelled)
    stream = TextStream(tokenizer, [], SamplingParams(stop=[" "], min_tokens=num_early))
    for token_id in output:
        stream.push([token_id])
    stream.finish()
    wanted = (REPLACEMENT + " ", None) if num_early == 2 else ("", " ")  # of two spaces the first is stripped
    assert (stream.text, stream.matched_stop) == wanted


def test_the_text_of_a_single_token_keeps_the_space_that_it_has_within_a_text() -> None:
    tokenizer, word = ALL_TOKENIZERS["llama-2"], ids_of("llama-2", "▁engine")[0]
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert (tokenizer.decode([word]), text_of_token(wrapped, word)) == ("engine", " engine")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_decoded_again_stays_small_whatever_comes(kind: str) -> None:
    counted = _CountingTokenizer(ALL_TOKENIZERS[kind])
    for token_id in ids_of(kind, REPLACEMENT, "<s>", "<0xFF>", "<0x41>", "a", "¢æ", "ÿ"):
        counted.num_tokens = 0
        stream_text(counted, [], [token_id] * 2000)  # type: ignore[arg-type]  # it counts for the tokenizer it holds
        assert counted.num_tokens < 100_000, f"{kind}: {token_id}"


class _CountingTokenizer:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.num_tokens = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        self.num_tokens += len(token_ids)
        text: str = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, token_id: int) -> str | None:
        spelled: str | None = self.tokenizer.id_to_token(token_id)
        return spelled


@settings(max_examples=100, deadline=None)
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
    assert match(stops, _text_pieces(text, cuts)) == match(stops, list(text))


def _text_pieces(text: str, cuts: list[int]) -> list[str]:
    pieces = []
    for size in cuts:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]
