"""Encodes text as a model's tokenizer does, without the overhead of the wrapper around its backend."""

from __future__ import annotations

from typing import Any

_PLAIN = ("PreTrainedTokenizerBase.encode", "TokenizersBackend._encode_plus")
"""The methods of transformers behind `encode`; a class that overrides them is called through its own."""


class TextEncoder:
    """Encodes texts; safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        """Use the tokenizers library's backend; a tokenizer without one, or with its own `encode`, is called itself."""
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer if _is_plain(tokenizer) else None
        if self._backend is not None:
            tokenizer.encode("", add_special_tokens=False)  # which sets the backend up: no truncation …

    @property
    def backend(self) -> Any | None:
        """Return the tokenizers library's encoder; None if the tokenizer is called itself."""
        return self._backend

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text."""
        if self._backend is None:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        # The backend's only method that skips the offsets of tokens (a third of the time), and it releases the
        # interpreter lock for other threads.
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        token_ids: list[int] = encoded.ids
        return token_ids


def _is_plain(tokenizer: Any) -> bool:
    methods = (getattr(type(tokenizer), name, None) for name in ("encode", "_encode_plus"))
    return tuple(getattr(method, "__qualname__", "") for method in methods) == _PLAIN
