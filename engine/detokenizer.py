"""Decode tokens into text as they arrive. Uses a tokenizer's `decode` and its vocabulary; stops are in text.py.

The output's text equals the tokenizer's decode of all output tokens after the prompt's, whatever their grouping.
Text that may still change is therefore held back: a character with missing bytes, and a run of byte tokens
(`<0x0A>`), which decoders with byte fallback replace as a whole once one of its bytes is invalid UTF-8. Each piece is
decoded together with the tokens before it, as SentencePiece's decoders strip the space of a leading token.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

REPLACEMENT = "\ufffd"

_CONTEXT = 8
"""Earlier tokens that are decoded again with new ones: one suffices for all known decoders; a character has up to 4."""

_SPELLED_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_SPELLED_REPLACEMENT = (REPLACEMENT, "ï¿½")
"""Ends of tokens that are a replacement character; the second is its three bytes in GPT-2's alphabet."""


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used, besides the spelling of its tokens."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> Any:
        """Return the text of the tokens."""
        ...


class Detokenizer:
    """Decode one sequence as it grows; the pieces and the rest, joined, are the output's text.

    When the prompt ends inside a character, the output's text begins with the whole character.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> None:
        # Calling the backend's decode avoids the wrapper's per-call overhead, which is most of the time here.
        self._tokenizer: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._skip = skip_special_tokens
        self._bytes_of = _bytes_of_tokens(self._tokenizer, skip_special_tokens)
        self._run = _ByteRun()
        context, run = self._prompt_end(prompt_token_ids)
        begun = _unfinished([self._bytes_of[token_id] for token_id in run[-3:]])
        self._run.extend(self._bytes_of[token_id] for token_id in run[len(run) - begun :])
        # Byte tokens complete no character of the tokens before them, and a replacement character is itself complete.
        is_whole = run or self._bytes_of.spell(context[-3:]).endswith(_SPELLED_REPLACEMENT)
        text_of = self._decode if is_whole else self._certain
        if context:
            run = run[len(run) - begun :]  # complete characters belong to the prompt, whatever bytes follow
        self._num_open = len(run)
        self._window = context + run
        """Tokens that are decoded with the next ones; the last `_num_open` are an open run of byte tokens."""
        self._num_shown = len(text_of(context)) if context else len(self._decode(run[: len(run) - begun]))
        """Characters of the window's text that were already returned or belong to the prompt."""

    @property
    def open_text(self) -> str:
        """Return the whole characters held back in an open run of byte tokens; empty once a byte is invalid."""
        return self._run.text

    @property
    def num_open(self) -> int:
        """Return how many whole characters of the output an open run holds back; 0 once a byte is invalid."""
        if not self._run.text:
            return 0
        end = len(self._window) - self._run.num_unfinished
        return len(self._decode(self._window[:end])) - self._num_shown

    def push(self, token_ids: Sequence[int]) -> str:
        """Add new tokens; return the text that is now certain, perhaps empty."""
        new = [token_id for token_id in token_ids if self._bytes_of[token_id] != b""]
        num_new_open = _num_at_end(new, self._bytes_of)
        self._window += new
        if num_new_open == len(new):
            self._num_open += len(new)
            self._run.extend(self._bytes_of[token_id] for token_id in new)
            return ""
        self._num_open = num_new_open
        self._run = _ByteRun()
        self._run.extend(self._bytes_of[token_id] for token_id in new[len(new) - num_new_open :])
        return self._show_closed()

    def rest(self) -> str:
        """Return the text after the pieces if no more tokens come; incomplete bytes become a replacement character."""
        return self._decode(self._window)[self._num_shown :]

    def whole(self, token_ids: Sequence[int]) -> str:
        """Return the text of a complete output in one call, if nothing was pushed before."""
        return self._decode([*self._window, *token_ids])[self._num_shown :]

    def _show_closed(self) -> str:
        end = len(self._window) - self._num_open
        piece = self._certain(self._window[:end])[self._num_shown :]
        first = max(0, end - _CONTEXT)
        self._num_shown = len(self._certain(self._window[first:end]))
        self._window = self._window[first:]
        return piece

    def _prompt_end(self, token_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the run of byte tokens at a prompt's end, perhaps empty, and some tokens before it."""
        context: list[int] = []
        run: list[int] = []
        for token_id in reversed(token_ids):
            value = self._bytes_of[token_id]
            if value == b"":
                continue
            if value is not None and not context:
                run.append(token_id)
                continue
            context.append(token_id)
            if len(context) == _CONTEXT:
                break
        return context[::-1], run[::-1]

    def _certain(self, token_ids: list[int]) -> str:
        """Return the text without a possibly incomplete character at its end."""
        return self._decode(token_ids).removesuffix(REPLACEMENT)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)
        return text


def text_of_token(tokenizer: Any, token_id: int) -> str:
    """Return the text that a token adds when it is not the first one.

    SentencePiece's decoders strip the space of a leading token, so decoding it alone would lose the space.
    """
    return _texts_of_tokens(tokenizer)[token_id]


class _TextsOfTokens(dict[int, str]):
    """Cache of text_of_token, filled on demand."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._decode = getattr(tokenizer, "backend_tokenizer", tokenizer).decode  # the same decode as the output's text
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._start: str = self._decode(self._before, skip_special_tokens=False)

    def __missing__(self, token_id: int) -> str:
        text: str = self._decode([*self._before, token_id], skip_special_tokens=False)
        if not text.startswith(self._start):
            text = self._start + self._decode([token_id], skip_special_tokens=False)
        self[token_id] = added = text[len(self._start) :]
        return added


class _ByteRun:
    """The text of bytes while they are valid UTF-8; empty from the first invalid byte."""

    def __init__(self) -> None:
        self.text = ""
        """Whole characters only; at the start of a text a decoder may strip a space."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_broken = False

    @property
    def num_unfinished(self) -> int:
        """Return how many bytes at the end belong to an incomplete character."""
        return len(self._decoder.getstate()[0])

    def extend(self, values: Iterable[bytes | None]) -> None:
        for value in values:
            assert value, "not a byte token"
            if self._is_broken:
                return
            try:
                self.text += self._decoder.decode(value)
            except UnicodeDecodeError:
                self._is_broken, self.text = True, ""


class _BytesOfTokens(dict[int, bytes | None]):
    """The byte of a byte token, b"" of a token that is never shown, None of any other; filled on demand.

    Never shown are skipped special tokens and ids that the tokenizer lacks: decoders do not see them.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self._decode = tokenizer.decode
        self._spelled = getattr(tokenizer, "id_to_token", None) or tokenizer.convert_ids_to_tokens
        self._skip = skip_special_tokens

    def spell(self, token_ids: Iterable[int]) -> str:
        """Return the tokens as the vocabulary spells them."""
        return "".join(self._spelled(token_id) or "" for token_id in token_ids)

    def __missing__(self, token_id: int) -> bytes | None:
        self[token_id] = value = self._find(token_id)
        return value

    def _find(self, token_id: int) -> bytes | None:
        if not self._decode([token_id, token_id], skip_special_tokens=self._skip):  # twice: one alone may be stripped
            return b""
        spelled = _SPELLED_BYTE.fullmatch(self.spell([token_id]))
        if spelled is None or self._decode([token_id], skip_special_tokens=False) == spelled[0]:
            return None
        return bytes.fromhex(spelled[1])


@lru_cache(maxsize=8)
def _texts_of_tokens(tokenizer: Any) -> _TextsOfTokens:
    return _TextsOfTokens(tokenizer)


@lru_cache(maxsize=8)
def _bytes_of_tokens(tokenizer: Any, skip_special_tokens: bool) -> _BytesOfTokens:
    return _BytesOfTokens(tokenizer, skip_special_tokens=skip_special_tokens)


def _num_at_end(token_ids: Sequence[int], bytes_of: _BytesOfTokens) -> int:
    """Return how many byte tokens the sequence ends with."""
    for count, token_id in enumerate(reversed(token_ids)):
        if bytes_of[token_id] is None:
            return count
    return len(token_ids)


def _unfinished(last: Sequence[bytes | None]) -> int:
    """Return how many of these bytes, at most three, belong to an incomplete character."""
    for count in range(1, len(last) + 1):
        tail = b"".join(value or b"" for value in last[-count:])
        try:
            if codecs.getincrementaldecoder("utf-8")().decode(tail) == "":
                return count
        except UnicodeDecodeError:
            continue
    return 0
