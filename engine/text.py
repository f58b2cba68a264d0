"""Turn tokens into text as they come, and find stop strings in it. Knows a tokenizer's `decode`, no engine, no model.

A character may need several tokens, and a tokenizer may write the same token differently after another one; so text is
handed out only when it can no longer change, and each piece is decoded together with the tokens just before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from engine.errors import InvalidParamsError
from engine.params import SamplingParams

REPLACEMENT = "\ufffd"
_PROMPT_CONTEXT = 8
_MAX_PROMPT_CONTEXT = 64
_MAX_PENDING = 16
"""Tokens after which undecodable text is handed out as it is; no character needs as many."""


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = ...) -> Any:
        """Return the text of the tokens."""
        ...


def with_bad_words_as_tokens(params: SamplingParams, tokenizer: Any) -> SamplingParams:
    """Return the parameters with each bad word written as token ids, as it is and after a space (as vLLM does).

    Raises InvalidParamsError when a word has no tokens.
    """
    if not params.bad_words:
        return params
    found = {tuple(ids): None for ids in params.bad_words_token_ids}  # in order, each once
    for word in params.bad_words:
        for spelled in (word.lstrip(), " " + word.lstrip()):
            token_ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
            if not token_ids:
                raise InvalidParamsError(f"bad_words holds {word!r}, which has no token; leave it out.")
            found[token_ids] = None
    return replace(params, bad_words=(), bad_words_token_ids=tuple(found))


class Detokenizer:
    """Decode one sequence token by token; the pieces joined are the output's text.

    When the prompt ends inside a character, the output's text begins with the whole character.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool = True
    ) -> None:
        # The backend's decode is the wrapper's without its per-call overhead, which is most of the time here.
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        self._skip = skip_special_tokens
        self._window = self._prompt_end(prompt_token_ids)
        self._num_done = len(self._window)
        whole = self._whole_tokens()
        self._done_text = self._decode(whole)
        self._begins_whole = len(whole) == len(self._window)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take new tokens; return the text that is certain now, perhaps empty."""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._hand_out(text)
        whole = self._whole_tokens()
        if self._num_done < len(whole) < len(self._window):
            unfinished = self._window[len(whole) :]
            self._window = whole
            piece = self._hand_out(self._decode(whole))
            self._window = self._window + unfinished
            return piece
        return self._hand_out(text) if len(self._window) - self._num_done >= _MAX_PENDING else ""

    def finish(self) -> str:
        """Return what is left, an incomplete character as the replacement character."""
        if len(self._window) == self._num_done:
            return ""
        return self._hand_out(self._decode(self._window))

    def _prompt_end(self, token_ids: Sequence[int]) -> list[int]:
        """Return enough of the prompt's end to hold a character begun in it and to write its last word in context.

        It begins with a token that is text by itself: a run of byte tokens cut inside a character is unreadable as a
        whole to byte-fallback tokenizers.
        """
        start = max(0, len(token_ids) - _PROMPT_CONTEXT)
        lowest = max(0, len(token_ids) - _MAX_PROMPT_CONTEXT)
        while start > lowest and REPLACEMENT in self._decode([token_ids[start]]):
            start -= 1
        return list(token_ids[start:])

    def _whole_tokens(self) -> list[int]:
        """Return the window without the tokens of a character that it ends inside of: at most three, perhaps all."""
        for end in range(len(self._window), max(-1, len(self._window) - 4), -1):
            if not self._decode(self._window[:end]).endswith(REPLACEMENT):
                return self._window[:end]
        return self._window

    def _hand_out(self, text: str) -> str:
        piece = text[len(self._done_text) :]
        if self._begins_whole:  # else the window would begin inside a character
            self._window = self._window[self._num_done :] or self._window
        self._begins_whole = True
        self._num_done = len(self._window)
        self._done_text = self._decode(self._window)
        return piece

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=self._skip)
        return text


class StopMatcher:
    """Let text through up to the first stop string, and hold back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self._num_exempt = 0
        self.matched: str | None = None

    def exempt(self, text: str) -> str:
        """Return the text that may be shown, of text that comes too early to end the output.

        A stop string that is complete in it counts for nothing; one that begins in it may be completed later.
        """
        self._held += text
        self._num_exempt = len(self._held)
        return self._show_all_but(self._num_possible())

    def push(self, text: str) -> str:
        """Return the text that may be shown; `matched` is set once a stop string is complete.

        Of several, the one that completes first counts; of those that complete together, the one that began first.
        """
        if self.matched is not None:
            return ""
        self._held += text
        found = self._first_complete()
        if found is not None:
            end, start, self.matched = found
            shown = self._held[: end if self._include_stop else start]
            self._held = ""
            return shown
        return self._show_all_but(self._num_possible())

    def finish(self) -> str:
        """Return what was held back; nothing more comes."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self) -> tuple[int, int, str] | None:
        # It must end after the exempt text, so it begins at most its own length less one before that text's end.
        found = [(self._held.find(stop, max(0, self._num_exempt - len(stop) + 1)), stop) for stop in self._stops]
        return min(((at + len(stop), at, stop) for at, stop in found if at >= 0), default=None)

    def _show_all_but(self, num_held: int) -> str:
        shown = self._held[: len(self._held) - num_held]
        self._held = self._held[len(shown) :]
        self._num_exempt = max(0, self._num_exempt - len(shown))
        return shown

    def _num_possible(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for count in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0


class TextStream:
    """Tokens of one child in, showable text out, under the request's parameters."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
        self._include_stop = params.include_stop_str_in_output
        self._num_exempt_tokens = params.min_tokens if params.stop else 0
        self._matcher = StopMatcher(params.stop, include_stop=self._include_stop)
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """Return everything shown so far."""
        return "".join(self._pieces)

    @property
    def matched_stop(self) -> str | None:
        """Return the stop string that ended the text, None while there is none."""
        return self._matcher.matched

    def push(self, token_ids: Sequence[int], *, ends_with_stop_token: bool = False) -> str:
        """Take new tokens; return the text that may be shown now.

        Tokens after a stop string give nothing, nor does a stop token, unless stops are to be included. A stop string
        that is complete within the first `min_tokens` tokens does not count (as in vLLM).
        """
        if self.matched_stop is not None:
            return ""
        if ends_with_stop_token and not self._include_stop:
            token_ids = token_ids[:-1]
        early, others = token_ids[: self._num_exempt_tokens], token_ids[self._num_exempt_tokens :]
        self._num_exempt_tokens -= len(early)
        shown = self._show(self._matcher.exempt(self._detokenizer.push(early))) if early else ""
        return shown + (self._show(self._matcher.push(self._detokenizer.push(others))) if others else "")

    def finish(self) -> str:
        """Return the rest of the text; nothing more comes."""
        if self.matched_stop is not None:
            return ""
        shown = self._matcher.push(self._detokenizer.finish())
        return self._show(shown if self.matched_stop is not None else shown + self._matcher.finish())

    def _show(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text
