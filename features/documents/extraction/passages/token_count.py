"""Counts the tokens of texts with a model's tokenizer."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version

from features.documents.extraction.errors import PassageError

_LAST = 8
"""Cached counts: the cutter asks for the last few texts again, a fifth of all characters."""


class TokenCount:
    """A `Count` for `Cutter`, without the special tokens that a model puts around a text."""

    def __init__(self, tokenizer_json: bytes) -> None:
        """Read a file of the tokenizers library. Raises PassageError if the installed version cannot."""
        from tokenizers import Tokenizer  # noqa: PLC0415 - roles that only plan need not have it

        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # noqa: BLE001 - it raises plain Exception
            raise PassageError(f"tokenizers {version('tokenizers')} cannot read it: {error}") from None
        # A tokenizer file keeps the truncation and padding of its last use.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._counted = lru_cache(_LAST)(self._count)

    @property
    def version(self) -> str:
        """Return the version of the counting library, without that of the tokenizer itself."""
        return f"tokenizers-{version('tokenizers')}"

    def __call__(self, text: str) -> int:
        return self._counted(text)

    def _count(self, text: str) -> int:
        # The fast call skips the offsets of tokens, which saves two thirds of the time.
        (encoded,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return len(encoded.ids)
