"""Turn tokens into text as they come. Knows a tokenizer's `decode` and how it spells a token; no parameters, no stops.

The text of an output is what the tokenizer's own decode makes of all its tokens behind the prompt's, however they
arrive. So what may still change is held back: a character that its last bytes are missing of, and a run of byte tokens
(`<0x0A>`), which decoders with byte fallback turn into replacement characters as a whole once one byte of it is no
UTF-8. And each piece is decoded together with the tokens before it: SentencePiece's decoders strip the space of a token
that stands first.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

REPLACEMENT = "\ufffd"

_CONTEXT = 8
"""Tokens that are decoded again with new ones: any one will do for the decoders known, and a character has four."""

_SPELLED_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_SPELLED_REPLACEMENT = (REPLACEMENT, "ï¿½")
"""How tokens end that are one themselves; the other are its three bytes in GPT-2's alphabet."""


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer, beside how it spells a token."""

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
        # The backend's decode is the wrapper's without its per-call overhead, which is most of the time here.
        self._tokenizer: Any = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._skip = skip_special_tokens
        self._bytes_of = _bytes_of_tokens(self._tokenizer, skip_special_tokens)
        self._run = _ByteRun()
        context, run = self._prompt_end(prompt_token_ids)
        begun = _unfinished([self._bytes_of[token_id] for token_id in run[-3:]])
        self._run.extend(self._bytes_of[token_id] for token_id in run[len(run) - begun :])
        # Byte tokens complete no character of the tokens before them, and a replacement character is one itself.
        is_whole = run or self._bytes_of.spell(context[-3:]).endswith(_SPELLED_REPLACEMENT)
        text_of = self._decode if is_whole else self._certain
        if context:
            run = run[len(run) - begun :]  # what is whole of it is the prompt's, whatever bytes come now
        self._num_open = len(run)
        self._window = context + run
        """Tokens that are decoded with the next ones; the last `_num_open` are an open run of byte tokens."""
        self._num_shown = len(text_of(context)) if context else len(self._decode(run[: len(run) - begun]))
        """Characters of the window's text that were shown already, or are the prompt's."""

    @property
    def open_text(self) -> str:
        """Return the whole characters that are held back in an open run of byte tokens, none once a byte is bad."""
        return self._run.text

    @property
    def num_open(self) -> int:
        """Return how many characters of the output are whole and held back by an open run, none once a byte is bad."""
        if not self._run.text:
            return 0
        end = len(self._window) - self._run.num_unfinished
        return len(self._decode(self._window[:end])) - self._num_shown

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text that is certain now, perhaps empty."""
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
        """Return the text after the pieces if nothing more comes; what is incomplete is a replacement character."""
        return self._decode(self._window)[self._num_shown :]

    def whole(self, token_ids: Sequence[int]) -> str:
        """Return the text of an output that is complete, where nothing was pushed before: pieces and rest, at once."""
        return self._decode([*self._window, *token_ids])[self._num_shown :]

    def _show_closed(self) -> str:
        end = len(self._window) - self._num_open
        piece = self._certain(self._window[:end])[self._num_shown :]
        first = max(0, end - _CONTEXT)
        self._num_shown = len(self._certain(self._window[first:end]))
        self._window = self._window[first:]
        return piece

    def _prompt_end(self, token_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the run of byte tokens that a prompt ends with, perhaps none, and some tokens before it."""
        context: list[int] = []
        run: list[int] = []
        for token_id in reversed(token_ids):
            found = self._bytes_of[token_id]
            if found == b"":
                continue
            if found is not None and not context:
                run.append(token_id)
                continue
            context.append(token_id)
            if len(context) == _CONTEXT:
                break
        return context[::-1], run[::-1]

    def _certain(self, token_ids: list[int]) -> str:
        """Return the text without a character at its end that may be incomplete."""
        return self._decode(token_ids).removesuffix(REPLACEMENT)

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)
        return text


def text_of_token(tokenizer: Any, token_id: int) -> str:
    """Return what a token adds to a text that it does not begin.

    SentencePiece's decoders strip the space of a token that stands first, so one decoded alone would lose it.
    """
    return _texts_of_tokens(tokenizer)[token_id]


class _TextsOfTokens(dict[int, str]):
    """As text_of_token says, found out when asked for."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._decode = getattr(tokenizer, "backend_tokenizer", tokenizer).decode  # as the output's text is decoded
        self._before: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._start: str = self._decode(self._before, skip_special_tokens=False)

    def __missing__(self, token_id: int) -> str:
        text: str = self._decode([*self._before, token_id], skip_special_tokens=False)
        if not text.startswith(self._start):
            text = self._start + self._decode([token_id], skip_special_tokens=False)
        self[token_id] = added = text[len(self._start) :]
        return added


class _ByteRun:
    """The text of bytes while they are UTF-8; without it from the first one that is not."""

    def __init__(self) -> None:
        self.text = ""
        """Whole characters only; of those that begin a text, a decoder may strip a space."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_broken = False

    @property
    def num_unfinished(self) -> int:
        """Return how many bytes at the end begin a character that is not whole."""
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
    """The byte of a token that is one, b"" of a token that is never shown, None of any other; found out when asked for.

    Never shown are special tokens where they are skipped, and ids that the tokenizer lacks: decoders do not see them.
    """

    def __init__(self, tokenizer: Any, *, skip_special_tokens: bool) -> None:
        super().__init__()
        self._decode = tokenizer.decode
        self._spelled = getattr(tokenizer, "id_to_token", None) or tokenizer.convert_ids_to_tokens
        self._skip = skip_special_tokens

    def spell(self, token_ids: Iterable[int]) -> str:
        """Return the tokens as the vocabulary writes them."""
        return "".join(self._spelled(token_id) or "" for token_id in token_ids)

    def __missing__(self, token_id: int) -> bytes | None:
        self[token_id] = found = self._find(token_id)
        return found

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
    """Return how many byte tokens these end with."""
    for count, token_id in enumerate(reversed(token_ids)):
        if bytes_of[token_id] is None:
            return count
    return len(token_ids)


def _unfinished(last: Sequence[bytes | None]) -> int:
    """Return how many of these bytes, at most three, begin a character that is not whole."""
    for count in range(1, len(last) + 1):
        tail = b"".join(value or b"" for value in last[-count:])
        try:
            if codecs.getincrementaldecoder("utf-8")().decode(tail) == "":
                return count
        except UnicodeDecodeError:
            continue
    return 0
