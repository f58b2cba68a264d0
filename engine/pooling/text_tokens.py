"""Tokenize texts with an encoder's tokenizer.json, and report which were too long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import InvalidRequestError, ModelLoadError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """A text's token ids [length] int64, including special ones; with `is_truncated` its end is missing."""

    token_ids: Tensor
    is_truncated: bool


class TextTokens:
    """A tokenizer that keeps the first `max_tokens` of a text."""

    def __init__(self, path: Path, *, vocab_size: int, max_tokens: int, is_lower_cased: bool) -> None:
        self._tokenizer = load_tokenizer(path)
        self._is_lower_cased = is_lower_cased
        check_tokenizer(self._tokenizer, path, vocab_size=vocab_size, max_tokens=max_tokens)
        # The file has the settings of its maker's last call, which are not the model's limits.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def __call__(self, texts: Iterable[str]) -> list[TokenizedText]:
        """Tokenize every text. Raises InvalidRequestError, with the index, for an invalid one."""
        read = list_of(texts, "texts")
        if self._is_lower_cased:
            read = [text.lower() for text in read]
        tokenized = [_tokenized(encoding) for encoding in self._tokenizer.encode_batch_fast(read)]
        for index, one in enumerate(tokenized):
            if not len(one.token_ids):
                raise InvalidRequestError(f"texts[{index}] has no tokens; leave it out, or give it a text.")
        return tokenized

    @property
    def whole(self) -> Any:
        """Return a tokenizer like this one without truncation."""
        from tokenizers import Tokenizer, normalizers  # noqa: PLC0415 - as below

        tokenizer = Tokenizer.from_str(self._tokenizer.to_str())
        tokenizer.no_truncation()
        if self._is_lower_cased:
            own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        return tokenizer


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a model's directory. Raises ModelLoadError."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - untyped, and not needed to read configurations

    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelLoadError(f"{file} is missing; write it with transformers' AutoTokenizer and save_pretrained.")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises Exception itself
        raise ModelLoadError(f"{file} cannot be read: {error}.") from error


def check_tokenizer(tokenizer: Any, path: Path, *, vocab_size: int, max_tokens: int, is_pair: bool = False) -> None:
    """Raise ModelLoadError for a tokenizer of another model, or a limit without room beside its special tokens."""
    num_tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    if num_tokens > vocab_size:
        raise ModelLoadError(
            f"{path / 'tokenizer.json'} has {num_tokens} tokens, the model {vocab_size}; one of them is another's."
        )
    num_special = tokenizer.num_special_tokens_to_add(is_pair=is_pair)
    if max_tokens <= num_special:
        raise ModelLoadError(
            f"{path}: a text may have {max_tokens} tokens, {num_special} of them special; raise max_seq_length."
        )


def _tokenized(encoding: Any) -> TokenizedText:
    return TokenizedText(token_ids=torch.tensor(encoding.ids), is_truncated=bool(encoding.overflowing))


def list_of(texts: object, name: str) -> list[str]:
    """Return the texts as a list. Raises InvalidRequestError, with this name, for invalid ones."""
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise InvalidRequestError(f"{name} is of type {type(texts).__name__}; give a list of str.")
    items = list(texts)
    for index, text in enumerate(items):
        check_text(text, f"{name}[{index}]")
    return items


def check_text(text: object, name: str) -> None:
    """Raise InvalidRequestError, with this name, for a text that no tokenizer accepts."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name} is of type {type(text).__name__}; give a str.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} has {text[error.start]!r} at character {error.start}, half of a surrogate pair; text must "
            "be whole characters. Remove or replace it, or read its file as UTF-8."
        ) from error
