"""Tests that text is encoded as by transformers' `encode`, at less cost."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.workers.chat_templates import FAMILIES, tokenizer_of
from workers.text_encoder import TextEncoder

TEXTS = [
    "",
    "Hello 12",
    "  two\n\nlines \u6f22\U0001f600",
    "<s>[INST] <|im_start|>user </s><eos>",
    "word " * 2048,
]


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_of_the_tokenizer(name: str) -> None:
    tokenizer = tokenizer_of(FAMILIES[name])
    encoder = TextEncoder(tokenizer)
    for text in TEXTS:
        for adds in (True, False):
            assert encoder.encode(text, add_special_tokens=adds) == tokenizer.encode(text, add_special_tokens=adds)


def test_a_tokenizer_file_that_truncates_and_pads_gives_the_whole_text(tokenizer: Any) -> None:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend)
    expected = tokenizer.encode("Hello to all of you", add_special_tokens=False)
    assert len(expected) > 4
    assert TextEncoder(wrapped).encode("Hello to all of you", add_special_tokens=False) == expected


def test_a_text_does_not_go_through_the_wrapper(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder(tokenizer)
    monkeypatch.setattr(tokenizer, "encode", lambda *_, **__: [])
    assert len(encoder.encode("Hello", add_special_tokens=False)) > 0


def test_a_tokenizer_with_a_way_of_its_own_is_asked_itself(tokenizer: Any) -> None:
    def encode_reversed(self: Any, text: str, *args: Any, **kwargs: Any) -> Any:
        return PreTrainedTokenizerFast._encode_plus(self, text[::-1], *args, **kwargs)

    reversing = type("Reversing", (PreTrainedTokenizerFast,), {"_encode_plus": encode_reversed})
    wrapped = reversing(tokenizer_object=tokenizer.backend_tokenizer)
    expected = tokenizer.encode("olleH", add_special_tokens=False)
    assert TextEncoder(wrapped).encode("Hello", add_special_tokens=False) == expected
