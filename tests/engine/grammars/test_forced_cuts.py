"""Tests that forced tokens split a text as the model's tokenizer does, so that a model reads familiar tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engine.grammars.grammar import GrammarTokens
from engine.grammars.matcher import GrammarMatcher
from engine.structured import StructuredOutput

KEYS = ["name", "date_of_birth", "is_employee", "color", "total", "zip", "invoice_number", "straße", "e-mail", "page"]
WORDS = [
    "Anna Weber",
    "12 Main Street",
    "red",
    "reddish",
    "Zürich 😀",
    "N.V.",
    'say "hi"',
    "a\\b",
    "",
    "the only answer",
]
CORPUS = [json.dumps({key: word, other: 12}) for key in KEYS for other in KEYS for word in WORDS] + KEYS + WORDS
END = "</s>"


def byte_level(*, use_regex: bool) -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM2; without its regex, tokens span words and punctuation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer(**SIZE, initial_alphabet=alphabet, special_tokens=[END]))


def sentencepiece() -> Tokenizer:
    """As Llama 2, Mistral 7B and Phi-3: a text begins with a space, and what is unknown falls back to bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    written = json.loads(
        trained(tokenizer, trainers.BpeTrainer(**SIZE, special_tokens=["<unk>", END, *of_bytes])).to_str()
    )
    written["added_tokens"] = [added for added in written["added_tokens"] if added["content"] not in of_bytes]
    return Tokenizer.from_str(json.dumps(written))


SIZE: dict[str, Any] = {"vocab_size": 700, "show_progress": False}


def trained(tokenizer: Tokenizer, trainer: trainers.BpeTrainer) -> Tokenizer:
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="module", params=["byte-level", "spanning", "sentencepiece"])
def grammar_tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarTokens:
    tokenizer = (
        sentencepiece() if request.param == "sentencepiece" else byte_level(use_regex=request.param != "spanning")
    )
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    end = tokenizer.token_to_id(END)
    assert end is not None
    tokens = GrammarTokens(folder, vocab_size=tokenizer.get_vocab_size(), eos_token_ids=(end,))
    tokens.load()
    return tokens


def write(matcher: GrammarMatcher, cut: list[int]) -> tuple[list[int], int]:
    """Write a text as a model does that cuts it so, after what was forced; return the tokens, and how many were."""
    written: list[int] = []
    num_forced = 0
    while True:
        forced = matcher.forced_tokens()
        if forced and forced[0] in matcher._eos_token_ids:
            return written, num_forced
        assert written == cut[: len(written)]
        if not forced and len(written) == len(cut):
            return written, num_forced
        following = forced or [cut[len(written)]]
        assert all(map(matcher.accept, following)), matcher.error
        written += following
        num_forced += len(forced)


VALUES: dict[str, Any] = {
    "string": st.sampled_from(WORDS),
    "integer": st.integers(-999, 99_999),
    "boolean": st.booleans(),
    "null": st.none(),
}


@st.composite
def answers(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """Draw a schema and a text that fits it, as compact as ours are."""
    kinds = draw(st.dictionaries(st.sampled_from(KEYS), st.sampled_from([*VALUES, "choice", "list"]), min_size=1))
    found = dict(each(kinds, draw))
    schema = {
        "type": "object",
        "properties": {key: own for key, (own, _) in found.items()},
        "required": list(found),
        "additionalProperties": False,
    }
    value = {key: own for key, (_, own) in found.items()}
    return schema, json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def each(kinds: dict[str, str], draw: st.DrawFn) -> Iterator[tuple[str, tuple[dict[str, Any], Any]]]:
    for key, kind in kinds.items():
        if kind == "choice":
            words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True))
            yield key, ({"enum": words}, draw(st.sampled_from(words)))
        elif kind == "list":
            words = draw(st.lists(st.sampled_from(WORDS), max_size=2))
            yield key, ({"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 2}, words)
        else:
            yield key, ({"type": kind}, draw(VALUES[kind]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=answers())
def test_a_text_with_forced_tokens_is_cut_as_the_tokenizer_cuts_it(
    grammar_tokens: GrammarTokens, answer: tuple[dict[str, Any], str]
) -> None:
    schema, text = answer
    cut = grammar_tokens._tokens.tokenize_str(text)
    written, num_forced = write(grammar_tokens.compile(StructuredOutput(json=json.dumps(schema))), cut)
    assert written == cut
    assert grammar_tokens._tokens.decode_bytes(written).decode() == text
    assert num_forced > 0


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.sampled_from([word for word in WORDS if word]), min_size=1, max_size=4, unique=True))
def test_choices_are_cut_as_the_tokenizer_cuts_them(grammar_tokens: GrammarTokens, texts: list[str]) -> None:
    for text in texts:
        cut = grammar_tokens._tokens.tokenize_str(text)
        written, _ = write(grammar_tokens.compile(StructuredOutput(choice=tuple(texts))), cut)
        assert written == cut
