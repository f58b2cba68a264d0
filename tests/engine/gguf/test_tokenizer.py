"""Tests of tokenizers from a file's metadata: encoding and decoding by its vocabulary, names and flags."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.gguf.pre_tokenizers import PRE_TOKENIZERS
from engine.tokenizer import load_tokenizer
from tests.engine.gguf.builders import As, Written

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGED = ["he", "ll", "hell", "hello", "Ġhello", "Ġw", "or", "12"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ w", "o r", "1 2"]
SPECIAL = {"<|start|>": CONTROL, "<|end|>": CONTROL, "<tool_call>": USER_DEFINED, "<|none|>": CONTROL}


def key(name: str, value: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value}


def byte_level(pre: str = "smollm") -> dict[str, Any]:
    tokens = [*SPECIAL, *ALPHABET, *MERGED]
    kinds = [As("i32", SPECIAL.get(token, NORMAL)) for token in tokens]
    named = {"bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 3}
    return {
        **key("model", "gpt2"),
        **key("pre", pre),
        **key("tokens", tokens),
        **key("token_type", kinds),
        **key("merges", MERGES),
        **{f"tokenizer.ggml.{name}": value for name, value in named.items()},
    }


PIECES = {"▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "▁a": -5.0, "ab": -4.5, "bc": -4.25, "abc": -9.0, "▁ab": -8.0}
PIECES |= {"ca": -4.3, "aa": -4.9, "▁▁": -2.5, "▁bc": -7.0, "漢": -6.0}


def sentencepiece() -> dict[str, Any]:
    tokens = {"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}
    tokens |= {f"<0x{byte:02X}>": BYTE for byte in range(256)}
    tokens |= dict.fromkeys(PIECES, NORMAL)
    return {
        **key("model", "llama"),
        **key("tokens", list(tokens)),
        **key("token_type", [As("i32", kind) for kind in tokens.values()]),
        **key("scores", [PIECES.get(token, 0.0) for token in tokens]),
        **key("bos_token_id", 1),
        **key("eos_token_id", 2),
    }


def with_long_token(size: int) -> dict[str, Any]:
    metadata = sentencepiece()
    return {**metadata, **key("tokens", ["x" * size, *metadata["tokenizer.ggml.tokens"][1:]])}


def loaded(metadata: Mapping[str, Any], folder: Path) -> Any:
    return load_tokenizer(Written(metadata=dict(metadata)).to(folder / "x.gguf"))


def test_byte_level_texts_are_merged_and_come_back(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level(), tmp_path)
    text = "hello hello wor 1212 größer 漢\n\n  x"
    token_ids = tokenizer.encode(text)
    assert tokenizer.convert_ids_to_tokens(token_ids[:8]) == ["hello", "Ġhello", "Ġw", "or", "Ġ", "1", "2", "1"]
    assert tokenizer.decode(token_ids) == text


def test_control_tokens_are_special_and_the_authors_own_are_not(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level(), tmp_path)
    token_ids = tokenizer.encode("<|start|>hello<tool_call>hello<|end|>")
    hello = tokenizer.convert_tokens_to_ids("hello")
    assert token_ids == [0, hello, 2, hello, 1]
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "hello<tool_call>hello"
    assert {number: token.special for number, token in tokenizer.added_tokens_decoder.items()} == {
        0: True,
        1: True,
        2: False,
        3: True,
    }
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|start|>", "<|end|>", "<|none|>")


@pytest.mark.parametrize(
    ("model", "flags", "begin", "end"),
    [
        (byte_level(), {}, [], []),
        (byte_level("llama-bpe"), {}, [0], []),
        (byte_level("tekken"), {}, [0], []),
        (byte_level("llama-bpe"), key("add_bos_token", False), [], []),
        (byte_level(), {**key("add_bos_token", True), **key("add_eos_token", True)}, [0], [1]),
        (sentencepiece(), {}, [1], []),
        (sentencepiece(), {**key("add_bos_token", False), **key("add_eos_token", True)}, [], [2]),
    ],
)
def test_prompts_begin_and_end_as_the_file_says(
    model: dict[str, Any], flags: dict[str, Any], begin: list[int], end: list[int], tmp_path: Path
) -> None:
    tokenizer = loaded({**model, **flags}, tmp_path)
    inside = tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.encode("ab") == [*begin, *inside, *end]


WORDS = "It's  a12345\n\n tEst, don'T!\n x"
CUTS = {
    "gpt-2": ["It", "'s", " ", " a", "12345", "\n\n", " tEst", ",", " don", "'", "T", "!", "\n", " x"],
    "smollm": ["It", "'s", " ", " a", *"12345", "\n\n", " tEst", ",", " don", "'", "T", "!", "\n", " x"],
    "llama-bpe": ["It", "'s", " ", " a", "123", "45", "\n\n", " tEst", ",", " don", "'T", "!\n", " x"],
    "qwen2": ["It", "'s", " ", " a", *"12345", "\n\n", " tEst", ",", " don", "'T", "!\n", " x"],
    "tekken": ["It", "'s", " ", " a", *"12345", "\n\n", " t", "Est", ",", " don", "'T", "!\n", " x"],
    "deepseek-coder": [
        "It", "'", "s", " ", " a", *"12345", "\n", "\n", " tEst", ",", " don", "'", "T", "!", "\n", " x",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_texts_are_cut_as_the_named_tokenizer_cuts_them(name: str, tmp_path: Path) -> None:
    backend = loaded(byte_level(name), tmp_path).backend_tokenizer
    cut = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(WORDS)]
    decoded = ["".join(chr(bytes_of[letter]) for letter in word) for word in cut]
    assert decoded == CUTS[name]


bytes_of: dict[str, int] = {}
"""Of ASCII, which is all that WORDS has."""
for byte in range(128):
    [(letter, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
    bytes_of[letter] = byte


def test_every_known_cut_is_of_a_pattern_that_compiles(tmp_path: Path) -> None:
    for name in PRE_TOKENIZERS:
        tokenizer = loaded(byte_level(name), tmp_path)
        assert tokenizer.decode(tokenizer.encode(WORDS, add_special_tokens=False)) == WORDS, name


def test_a_word_that_is_a_token_is_taken_whole_where_the_model_does_so(tmp_path: Path) -> None:
    def with_word(pre: str) -> dict[str, Any]:
        metadata = byte_level(pre)
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "xyz"]
        metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], As("i32", NORMAL)]
        return metadata

    assert loaded(with_word("llama-bpe"), tmp_path).tokenize("xyz") == ["xyz"]
    assert loaded(with_word("smaug-bpe"), tmp_path).tokenize("xyz") == ["x", "y", "z"]


def test_qwen_composes_letters_and_llama_leaves_them(tmp_path: Path) -> None:
    for name, expected in (("qwen2", "é"), ("llama-bpe", "e\u0301")):
        tokenizer = loaded(byte_level(name), tmp_path)
        assert tokenizer.decode(tokenizer.encode("e\u0301", add_special_tokens=False)) == expected


def by_hand(text: str) -> list[str]:
    """Join the pair of the best score, the first of equals, until there is none; letters unknown become bytes."""
    pieces = list(text)
    while True:
        found = [(-PIECES[left + right], at) for at, (left, right) in pairs(pieces) if left + right in PIECES]
        if not found:
            break
        at = min(found)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return [
        token
        for piece in pieces
        for token in ([piece] if piece in PIECES else [f"<0x{byte:02X}>" for byte in piece.encode()])
    ]


def pairs(pieces: list[str]) -> list[tuple[int, tuple[str, str]]]:
    return list(enumerate(itertools.pairwise(pieces)))


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_texts_are_joined_by_score(has_prefix: bool, tmp_path: Path) -> None:
    tokenizer = loaded({**sentencepiece(), **key("add_space_prefix", has_prefix)}, tmp_path)
    letters = random.Random(3)
    for _ in range(300):
        text = "".join(letters.choices("abc 漢é😀\n", [6, 6, 6, 4, 1, 1, 1, 1], k=letters.randint(1, 14)))
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        written = ("▁" if has_prefix else "") + text.replace(" ", "▁")
        assert tokenizer.convert_ids_to_tokens(token_ids) == by_hand(written), text
        assert tokenizer.decode(token_ids) == text


def test_a_chat_template_is_the_files_own(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ bos_token }}{{ m['content'] }}{% endfor %}"
    tokenizer = loaded({**byte_level(), "tokenizer.chat_template": template}, tmp_path)
    chat = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|start|>hello"
    several = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ tools }}"}
    tokenizer = loaded({**byte_level(), "tokenizer.chat_template": template, **several}, tmp_path)
    assert tokenizer.get_chat_template() == template
    assert tokenizer.get_chat_template(tools=[{"type": "function"}]) == "{{ tools }}"


@pytest.mark.parametrize("metadata", [{}, key("model", "no_vocab")])
def test_a_file_without_a_tokenizer_has_none(metadata: dict[str, Any], tmp_path: Path) -> None:
    assert loaded(metadata, tmp_path) is None


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (key("model", "t5"), "has the tokenizer 't5'; of GGUF files gpt2 and llama are read"),
        ({**byte_level(), **key("pre", "bloom")}, "has tokenizer.ggml.pre 'bloom'; the engine supports gpt-2"),
        ({**byte_level(), **key("pre", "default")}, "has tokenizer.ggml.pre 'default'"),
    ],
)
def test_a_tokenizer_that_is_not_known_is_refused_by_name(metadata: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        loaded(metadata, tmp_path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({**byte_level(), **key("tokens", 7)}, "tokens is not a list of str"),
        ({**byte_level(), **key("tokens", ["a", "b", "a"])}, "tokens has a token twice"),
        ({**byte_level(), **key("token_type", [1, 1])}, "token_type has 2 entries for 268 tokens"),
        ({**byte_level(), **key("merges", ["h e", "zz q"])}, "a tokenizer that cannot be built"),
        ({**byte_level(), **key("eos_token_id", 268)}, "eos_token_id is 268, which is none of the 268 tokens"),
        ({**byte_level(), **key("add_bos_token", 1)}, "add_bos_token is not true or false"),
        ({**byte_level(), **key("tokens", [1.0])}, "tokens is not a list of str"),
        ({**byte_level(), **key("token_type", [0.5] * 268)}, "token_type is not a list of int"),
        ({**byte_level(), **key("merges", [])}, "merges is not a list of str"),
        ({**sentencepiece(), **key("scores", [0.5])}, "scores has 1 entries for"),
        (with_long_token(5000), "tokens has 5000 characters in token 0; at most 2048 are read"),
    ],
)
def test_a_broken_tokenizer_is_named(metadata: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        loaded(metadata, tmp_path)
    assert said in str(caught.value)
