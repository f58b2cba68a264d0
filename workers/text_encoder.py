"""Encodes text as a model's tokenizer does, without what the wrapper around its backend costs for each text.

Knows no template and no limits.
"""

from __future__ import annotations

from typing import Any

LONG_CHARACTERS = 2048
"""From here on a text is encoded without the interpreter's lock. To give it back and wait for it again costs more than
the encoding of a shorter one, which takes a third of a millisecond (demo model)."""

_PLAIN = ("PreTrainedTokenizerBase.encode", "TokenizersBackend._encode_plus")
"""The methods of transformers behind `encode`; a class with others of its own has its reasons."""


class TextEncoder:
    """Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        """Without a backend of the tokenizers library, or with a way of its own, a tokenizer is asked itself."""
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer if _is_plain(tokenizer) else None
        if self._backend is not None:
            tokenizer.encode("", add_special_tokens=False)  # which sets the backend up: no truncation …

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        if self._backend is None:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        if len(text) < LONG_CHARACTERS:
            encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)


def _is_plain(tokenizer: Any) -> bool:
    methods = (getattr(type(tokenizer), name, None) for name in ("encode", "_encode_plus"))
    return tuple(getattr(method, "__qualname__", "") for method in methods) == _PLAIN
