from __future__ import annotations

import pytest

from engine.detokenizer import Detokenizer
from engine.params import SamplingParams
from engine.text import StopMatcher, TextStream
from tests.engine.texts import ALL_TOKENIZERS, SAMPLES, TOKENIZERS, ids_of, match, stream_text


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", SAMPLES)
def test_many_tokens_at_once_that_end_inside_a_character_lose_nothing(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    prompt, output = tokenizer.encode("prompt. ").ids, tokenizer.encode(f"a long beginning of the text {text}").ids
    for cut in range(len(output)):
        detokenizer = Detokenizer(tokenizer, prompt)
        pieces = [detokenizer.push(output[:cut]), *(detokenizer.push([token]) for token in output[cut:])]
        assert "".join([*pieces, detokenizer.rest()]) == tokenizer.decode(output)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", SAMPLES)
def test_incremental_text_equals_the_full_decode(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    prompt, output = tokenizer.encode("prompt. ").ids, tokenizer.encode(text).ids
    assert stream_text(tokenizer, prompt, output) == tokenizer.decode(output) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", ["ab😀cd", "a漢字漢字漢字漢字b", "漢字", *SAMPLES])
def test_a_prompt_may_end_inside_a_character(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).ids
    for cut in range(1, len(ids)):
        # What is whole before the cut is the prompt's; a character that the cut splits is the output's.
        whole = next(k for k in range(len(text), -1, -1) if len(tokenizer.encode(text[:k]).ids) <= cut)
        assert stream_text(tokenizer, ids[:cut], ids[cut:]) == text[whole:]


@pytest.mark.parametrize("kind", ["byte-fallback", "llama-2"])
def test_a_replacement_character_in_the_prompt_is_no_beginning_of_the_output(kind: str) -> None:
    prompt, output = ids_of(kind, "a", "\ufffd", "<0x0A>"), ids_of(kind, "b", "c")
    assert (len(prompt), len(output)) == (3, 2)
    assert stream_text(ALL_TOKENIZERS[kind], prompt, output) == "bc"


@pytest.mark.parametrize("kind", ALL_TOKENIZERS)
def test_a_prompt_may_end_in_a_replacement_character(kind: str) -> None:
    prompt, output = ids_of(kind, "a", "\ufffd"), ids_of(kind, "b", "c")
    assert stream_text(ALL_TOKENIZERS[kind], prompt, output) == "bc"
    assert Detokenizer(ALL_TOKENIZERS[kind], prompt).whole(output) == "bc"


@pytest.mark.parametrize("kind", ["byte-level", "straddling"])
def test_a_replacement_character_of_bytes_is_the_prompts_and_half_of_one_is_not(kind: str) -> None:
    ids = ids_of(kind, "a", "ï", "¿", "½", "b")
    assert [stream_text(ALL_TOKENIZERS[kind], ids[:cut], ids[cut:]) for cut in (3, 4)] == ["\ufffdb", "b"]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_nothing_incomplete_is_shown_before_the_character_is_whole(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    detokenizer = Detokenizer(tokenizer, tokenizer.encode("x").ids)
    shown = ""
    for token in tokenizer.encode("字😀").ids:
        shown += detokenizer.push([token])
        assert shown + detokenizer.open_text in {"", "字", "字😀"}
    assert shown + detokenizer.open_text == shown + detokenizer.rest() == "字😀"


def test_a_character_that_never_completes_ends_as_a_replacement() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("a😀").ids[:-1]
    assert stream_text(tokenizer, tokenizer.encode("x").ids, ids) == tokenizer.decode(ids)


def test_undecodable_tokens_are_not_held_for_ever() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    lone = tokenizer.encode("漢").ids[1]
    detokenizer = Detokenizer(tokenizer, tokenizer.encode("x").ids)
    assert any(detokenizer.push([lone]) for _ in range(40))
    assert len(detokenizer._window) < 64


def test_a_stop_string_across_tokens_ends_the_text() -> None:
    assert match(["END"], ["one E", "N", "D two"]) == ("one ", "END")


def test_of_two_stop_strings_in_one_token_the_one_that_completes_first_counts() -> None:
    assert match(["d", "bc"], ["abcd"]) == ("a", "bc")
    assert match(["bcd", "c"], ["abcd"]) == ("ab", "c")


def test_of_stop_strings_that_complete_together_the_one_that_began_first_counts() -> None:
    assert match(["c", "abc"], ["xabc"]) == ("x", "abc")


def test_a_stop_string_is_shown_only_when_asked_for() -> None:
    assert match(["END"], ["one END two"], include_stop=True) == ("one END", "END")


def test_nothing_of_a_stop_string_leaks_while_it_is_incomplete() -> None:
    matcher = StopMatcher(["</s>", "stop"])
    shown = [matcher.push(letter) for letter in "a st </x </s"]
    assert "".join(shown) == "a st </x "
    assert matcher.push(">") == ""
    assert matcher.matched == "</s>"


def test_text_that_only_looked_like_a_stop_string_comes_out_at_the_end() -> None:
    assert match(["END"], ["one E", "N"]) == ("one EN", None)


def test_text_is_shown_as_soon_as_no_stop_string_can_begin_in_it() -> None:
    def shown(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[list[str], str | None]:
        matcher = StopMatcher(stops, include_stop=include_stop)
        return [*(matcher.push(piece) for piece in pieces), matcher.finish()], matcher.matched

    assert shown(["END"], ["one E", "N", "D two"]) == (["one ", "", "", ""], "END")  # across tokens, nothing leaks
    assert shown(["END"], ["one E", "N", "D two"], include_stop=True) == (["one ", "", "END", ""], "END")
    assert shown(["d", "bc"], ["abcd"]) == (["a", ""], "bc")  # of two in one token the one that completes first
    assert shown(["END"], ["one E", "N"]) == (["one ", "", "EN"], None)  # what was none comes out at the end


def test_a_stop_token_is_not_text_unless_asked_for() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("ab").ids
    for include, expected in ((False, "a"), (True, "ab")):
        params = SamplingParams(stop_token_ids=[ids[1]], include_stop_str_in_output=include)
        stream = TextStream(tokenizer, ids, params)
        stream.push(ids[:1])
        stream.push(ids[1:], ends_with_stop_token=True)
        stream.finish()
        assert stream.text == expected


def letters(text: str, *, stop: list[str], min_tokens: int, size: int) -> tuple[str, str | None]:
    """Return what is shown of a text, one letter a token, `size` tokens a push, and the stop string that ended it."""
    tokenizer = TOKENIZERS["byte-level"]
    params = SamplingParams(stop=stop, min_tokens=min_tokens, max_tokens=100)
    stream = TextStream(tokenizer, tokenizer.encode("p").ids, params)
    token_ids = tokenizer.encode(text).ids
    for first in range(0, len(token_ids), size):
        stream.push(token_ids[first : first + size])
    stream.finish()
    return stream.text, stream.matched_stop


@pytest.mark.parametrize("size", [1, 2, 50])
@pytest.mark.parametrize(
    ("min_tokens", "shown", "matched"),
    [(0, "one ", "STOP"), (7, "one ", "STOP"), (8, "one STOP two ", "STOP"), (17, "one STOP two STOP", None)],
)
def test_a_stop_string_within_the_first_min_tokens_ends_nothing(
    *, min_tokens: int, shown: str, matched: str | None, size: int
) -> None:
    assert letters("one STOP two STOP", stop=["STOP"], min_tokens=min_tokens, size=size) == (shown, matched)


@pytest.mark.parametrize("size", [1, 3])
def test_a_stop_string_that_came_too_early_is_not_found_later(size: int) -> None:
    # "ab" is complete after two tokens, and held back since "abcd" may follow.
    assert letters("abx", stop=["ab", "abcd"], min_tokens=2, size=size) == ("abx", None)
    assert letters("aab", stop=["aa"], min_tokens=2, size=size) == ("aab", None)
    assert letters("aaa", stop=["aa"], min_tokens=2, size=size) == ("a", "aa")


@pytest.mark.parametrize("size", [1, 3])
def test_the_first_stop_string_after_min_tokens_ends_the_text(size: int) -> None:
    assert letters("ab ab c", stop=["ab"], min_tokens=3, size=size) == ("ab ", "ab")
