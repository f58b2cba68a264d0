"""Tokenize pairs of a query and a document, and report which documents were too long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import InvalidRequestError
from engine.pooling.text_tokens import TokenizedText, check_text, check_tokenizer, list_of, load_tokenizer


class QueryTooLongError(InvalidRequestError):
    """A query leaves no room for a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPair(TokenizedText):
    """A pair's token ids and token types, both [length] int64; with `is_truncated` the document's end is missing."""

    types: Tensor


def read_documents(query: object, documents: object) -> list[str]:
    """Return the documents for a query. Raises InvalidRequestError, with the field's name, for an invalid text."""
    check_text(query, "query")
    return list_of(documents, "documents")


def check_query(num_tokens: int, *, allowed: int) -> None:
    """Raise QueryTooLongError if a query has more tokens than are allowed beside a document."""
    if num_tokens > allowed:
        raise QueryTooLongError(
            f"query has {num_tokens} tokens; beside a document it may have {max(0, allowed)} in this model. Shorten it."
        )


class PairTokens:
    """A tokenizer that keeps a query whole, and as much of a document as fits."""

    def __init__(self, path: Path, *, vocab_size: int, max_tokens: int) -> None:
        self._tokenizer = load_tokenizer(path)
        check_tokenizer(self._tokenizer, path, vocab_size=vocab_size, max_tokens=max_tokens, is_pair=True)
        self._num_special = self._tokenizer.num_special_tokens_to_add(is_pair=True)
        self._max_tokens = max_tokens
        # The file has the settings of its maker's last call, which are not the model's limits.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens, strategy="only_second")

    def __call__(self, query: str, documents: Iterable[str]) -> list[TokenizedPair]:
        """Tokenize the query with every document. Raises InvalidRequestError for an invalid text."""
        read = read_documents(query, documents)
        check_query(self._length(query), allowed=self._max_tokens - self._num_special - 1)
        encodings = self._tokenizer.encode_batch([(query, document) for document in read])
        return [
            TokenizedPair(
                token_ids=torch.tensor(each.ids),
                types=torch.tensor(each.type_ids),
                is_truncated=bool(each.overflowing),
            )
            for each in encodings
        ]

    def _length(self, query: str) -> int:
        self._tokenizer.no_truncation()
        try:
            return len(self._tokenizer.encode(query, add_special_tokens=False).ids)
        finally:
            self._tokenizer.enable_truncation(self._max_tokens, strategy="only_second")
