"""Tests of too long texts, refused by their first pieces; texts that fit have the tokens of the whole."""

from __future__ import annotations

import pickle
import random
from functools import cache
from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from jobs.lines.body_checks import BodyError
from jobs.lines.reading import InputLine
from tests.workers.chat_templates import FAMILIES, TEXT, tokenizer_of
from workers import prompt_lengths
from workers.prompt_lengths import PIECE_CHARACTERS, PromptLengths, Unwanted
from workers.prompts import PromptMaker

SAMPLES = [*TEXT, "漢字とかな", "a", " ", "\n", "é😀 ", "x1 ", "1234567890", "<s>", "word-"]


@cache
def tokenizer_named(name: str) -> Any:
    return tokenizer_of(FAMILIES[name])


class Counting:
    """Passes calls on to a tokenizer's backend, and counts the tokenized letters."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.num_letters = 0

    def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
        self.num_letters += sum(map(len, texts))
        return self._backend.encode_batch_fast(texts, **how)


class CountingTokenizer:
    """A tokenizer whose backend counts, and that may not encode a text whole."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.backend_tokenizer = Counting(tokenizer.backend_tokenizer)

    def encode(self, text: str, **_: Any) -> list[int]:
        raise AssertionError(f"{len(text)} letters are tokenised as a whole")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def a_line(**body: Any) -> InputLine:
    return InputLine(line_no=0, custom_id="a", model="demo", body={"model": "demo", **body})


@pytest.mark.parametrize(
    ("endpoint", "param", "body"),
    [
        (CHAT_ENDPOINT, "messages", {"messages": [{"role": "user", "content": "word " * 400_000}]}),
        (CHAT_ENDPOINT, "messages", {"messages": [{"role": "user", "content": "<|end|>" * 100_000}]}),
        (COMPLETION_ENDPOINT, "prompt", {"prompt": ["word " * 400_000]}),
    ],
)
def test_of_a_text_that_is_too_long_only_the_beginning_is_tokenised(
    tokenizer: Any, endpoint: str, param: str, body: dict[str, Any]
) -> None:
    counting = CountingTokenizer(tokenizer)
    maker = PromptMaker(counting, max_model_len=1024, vocab_size=1024)
    with pytest.raises(
        BodyError, match=rf"{param} has at least \d+ tokens and this model's context is 1024,"
    ) as caught:
        maker.prepare(a_line(**body), endpoint=endpoint, batch_id="b")
    assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")
    assert 0 < counting.backend_tokenizer.num_letters <= PIECE_CHARACTERS


class CountingEncodes:
    """Counts the prompts that a tokenizer encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.num_prompts = 0

    def encode(self, text: str, **how: Any) -> list[int]:
        self.num_prompts += 1
        found: list[int] = self._tokenizer.encode(text, **how)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_of_many_prompts_none_is_encoded_after_one_that_is_too_long(tokenizer: Any) -> None:
    counting = CountingEncodes(tokenizer)
    maker = PromptMaker(counting, max_model_len=1024, vocab_size=1024)
    prompts = ["word", "word " * 3000, *["word " * 3000] * 50]
    with pytest.raises(BodyError, match="this model's context is 1024"):
        maker.prepare(a_line(prompt=prompts), endpoint=COMPLETION_ENDPOINT, batch_id="b")
    assert counting.num_prompts == 2


def test_of_many_prompts_none_is_encoded_that_nobody_wants_any_more(tokenizer: Any) -> None:
    counting, answers = CountingEncodes(tokenizer), iter([True, True, False])
    maker = PromptMaker(counting, max_model_len=1024, vocab_size=1024)
    with pytest.raises(Unwanted):
        maker.prepare(
            a_line(prompt=["word"] * 50), endpoint=COMPLETION_ENDPOINT, batch_id="b", is_wanted=lambda: next(answers)
        )
    assert counting.num_prompts == 2


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_refused_unread_has_as_many_tokens_as_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lengths, "PIECE_CHARACTERS", 4096)
    tokenizer, dice = tokenizer_named(name), random.Random(3)
    for count in (1, 1, 2, 5):
        sample = "".join(dice.choices(SAMPLES, k=count))
        text = sample * (12 * 4096 // len(sample))
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False))
        check_text(tokenizer, text, max_model_len=num_tokens + 1)
        with pytest.raises(BodyError) as caught:
            check_text(tokenizer, text, max_model_len=num_tokens // 4)
        said = int(str(caught.value).split("at least ")[1].split()[0])
        assert num_tokens // 4 <= said <= num_tokens


def check_text(tokenizer: Any, text: str, *, max_model_len: int) -> None:
    """Count the tokens of a text, however short it is."""
    lengths = PromptLengths(tokenizer, max_model_len=max_model_len)
    lengths._max_unchecked = 0
    lengths.check_text(text, param="prompt", is_wanted=lambda: True)


def test_a_text_that_nobody_wants_any_more_is_left() -> None:
    tokenizer = tokenizer_named("mistral")
    counting, answers = CountingTokenizer(tokenizer), iter([True, True, False])
    lengths = PromptLengths(counting, max_model_len=10**6)
    with pytest.raises(Unwanted):
        lengths.check_text("word " * 10**6, param="prompt", is_wanted=lambda: next(answers))
    assert counting.backend_tokenizer.num_letters == 2 * PIECE_CHARACTERS


@pytest.mark.parametrize(
    ("endpoint", "asked"),
    [
        (CHAT_ENDPOINT, {"messages": [{"role": "user", "content": "invoice " * 50_000}]}),
        (COMPLETION_ENDPOINT, {"prompt": ["invoice " * 25_000] * 2}),
        (COMPLETION_ENDPOINT, {"prompt": [[700] * 100_000]}),
    ],
)
def test_of_a_long_line_no_more_is_kept_than_four_bytes_a_token(
    tokenizer: Any, endpoint: str, asked: dict[str, Any]
) -> None:
    maker = PromptMaker(tokenizer, max_model_len=2**20, vocab_size=1024)
    maker.prepare(a_line(prompt="warm"), endpoint=COMPLETION_ENDPOINT, batch_id="b")
    prepared = maker.prepare(a_line(**asked), endpoint=endpoint, batch_id="b")
    # Not by tracemalloc: stopping it sometimes crashes Python 3.11 while other threads allocate.
    assert len(pickle.dumps(prepared)) < 4 * prepared.num_prompt_tokens + 64 * 1024
    assert prepared.num_prompt_tokens >= 100_000
