"""The embedding models of indexes, as far as a query's text depends on them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

_TOKENS_AROUND = 8
"""More than a tokenizer adds at both ends of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedder:
    """The embedding model of an index's queries."""

    model: str
    query_prefix: str
    max_tokens: int
    """Per text."""

    def may_cut(self, text: str) -> bool:
        """Return whether a text may exceed the tokens that are read; a token has at least one byte."""
        return len(unicodedata.normalize("NFKC", text).encode()) + _TOKENS_AROUND > self.max_tokens


EmbedderOf = Callable[[Session, str, str], Embedder | None]
"""Takes the ids of a tenant and an index; returns the embedder of the index, None where it needs none. Raises
NotFoundError where there is no such index, and InputError where it cannot be searched."""


def no_embedder(_session: Session, _tenant_id: str, _index_id: str) -> None:
    """Return None: no index has its queries embedded."""
