"""Counts the tokens of texts as a model does that has this tokenizer. Knows no model and no file."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version

from features.documents.extraction.errors import PassageError

_LAST = 8
"""Counts that are kept: who cuts asks for the last few texts again, which is a fifth of all characters."""


class TokenCount:
    """A `Count` for `Cutter`, without the special tokens that a model puts around a text."""

    def __init__(self, tokenizer_json: bytes) -> None:
        """Read what the library tokenizers writes. Raises PassageError where this release of it cannot."""
        from tokenizers import Tokenizer  # noqa: PLC0415 - roles that only plan need not have it

        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # noqa: BLE001 - it raises Exception itself
            raise PassageError(f"tokenizers {version('tokenizers')} cannot read it: {error}") from None
        # What a file says of both was its maker's last call.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._counted = lru_cache(_LAST)(self._count)

    @property
    def version(self) -> str:
        """Return what counts, beside the tokenizer itself."""
        return f"tokenizers-{version('tokenizers')}"

    def __call__(self, text: str) -> int:
        return self._counted(text)

    def _count(self, text: str) -> int:
        # The one way that does not find out where each token stands in the text, a third of the time.
        (encoded,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return len(encoded.ids)
