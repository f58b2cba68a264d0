"""Text of an output under its request's parameters, and the search for stop strings in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.detokenizer import Detokenizer, Tokenizer
from engine.errors import InvalidParamsError
from engine.params import SamplingParams


def with_bad_words_as_tokens(params: SamplingParams, tokenizer: Any) -> SamplingParams:
    """Return the parameters with each bad word as token ids, with and without a leading space (like vLLM).

    Raises InvalidParamsError when a word has no tokens.
    """
    if not params.bad_words:
        return params
    sequences = {tuple(ids): None for ids in params.bad_words_token_ids}  # in order, each once
    for word in params.bad_words:
        for spelled in (word.lstrip(), " " + word.lstrip()):
            token_ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
            if not token_ids:
                raise InvalidParamsError(f"bad_words holds {word!r}, which has no token; leave it out.")
            sequences[token_ids] = None
    return replace(params, bad_words=(), bad_words_token_ids=tuple(sequences))


class StopMatcher:
    """Pass text through up to the first stop string, and hold back a possible beginning of one."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self._num_exempt = 0
        self.matched: str | None = None

    def exempt(self, text: str, *, num_open: int = 0) -> str:
        """Return what may be shown of text that comes too early to end the output.

        A stop string that is complete in it is ignored, as is one in the `num_open` characters after it, which are
        pushed once they are certain; one that only begins in it may be completed later.
        """
        self._held += text
        self._num_exempt = len(self._held) + num_open
        return self._show_all_but(self._num_possible())

    def push(self, text: str) -> str:
        """Return the text that may be shown; `matched` is set once a stop string is complete.

        The stop string that completes first counts; among those that complete together, the one that began first.
        """
        if self.matched is not None:
            return ""
        self._held += text
        match = self._first_complete()
        if match is not None:
            end, start, self.matched = match
            visible = self._held[: end if self._include_stop else start]
            self._held = ""
            return visible
        return self._show_all_but(self._num_possible())

    def completes(self, text: str) -> bool:
        """Tell whether a stop string would be complete at the end of this text if it were pushed now."""
        if self.matched is not None or len(self._held) + len(text) <= self._num_exempt:
            return False
        return (self._held + text).endswith(self._stops)

    def finish(self) -> str:
        """Return the text held back; no more follows."""
        rest, self._held = self._held, ""
        return rest

    def _first_complete(self) -> tuple[int, int, str] | None:
        # It must end after the exempt text, so it begins at most its own length less one before that text's end.
        positions = [(self._held.find(stop, max(0, self._num_exempt - len(stop) + 1)), stop) for stop in self._stops]
        return min(((at + len(stop), at, stop) for at, stop in positions if at >= 0), default=None)

    def _show_all_but(self, num_held: int) -> str:
        visible = self._held[: len(self._held) - num_held]
        self._held = self._held[len(visible) :]
        self._num_exempt = max(0, self._num_exempt - len(visible))
        return visible

    def _num_possible(self) -> int:
        """Return the length of the longest suffix of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for count in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-count:]) for stop in self._stops):
                return count
        return 0


class TextStream:
    """Turn the tokens of one child into text that may be shown, under the request's parameters."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
        self._has_stops = bool(params.stop)
        self._include_stop = params.include_stop_str_in_output
        self._num_exempt_tokens = params.min_tokens
        self._matcher = StopMatcher(params.stop, include_stop=self._include_stop)
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """Return all text shown so far."""
        return "".join(self._pieces)

    @property
    def matched_stop(self) -> str | None:
        """Return the stop string that ended the text, None if there is none yet."""
        return self._matcher.matched

    def push(self, token_ids: Sequence[int], *, ends_with_stop_token: bool = False) -> int:
        """Add new tokens; return how many belong to the output: all, or those up to the end of a stop string.

        A stop token has no text, unless stops are included in the output. A stop string that is complete within the
        first `min_tokens` tokens does not count (like vLLM).
        """
        if self.matched_stop is not None:
            return 0
        visible = token_ids[:-1] if ends_with_stop_token and not self._include_stop else token_ids
        if not self._has_stops:
            self._pieces.append(self._detokenizer.push(visible))
            return len(token_ids)
        for count, token_id in enumerate(visible, start=1):  # one by one, so that none after a stop string is added
            self._search(token_id)
            if self.matched_stop is not None:
                return count
        return len(token_ids)

    def finish(self) -> None:
        """Show the rest of the text; no more tokens follow."""
        if self.matched_stop is None:
            self._pieces += [self._matcher.push(self._detokenizer.rest()), self._matcher.finish()]

    def _search(self, token_id: int) -> None:
        piece = self._detokenizer.push([token_id])
        if self._num_exempt_tokens:
            self._num_exempt_tokens -= 1
            self._pieces.append(self._matcher.exempt(piece, num_open=self._detokenizer.num_open))
            return
        open_text = self._detokenizer.open_text
        self._pieces.append(self._matcher.push(piece))
        if open_text and self._matcher.completes(open_text):
            rest = self._detokenizer.rest()  # certain, since the output ends here
            if self._matcher.completes(rest):
                self._pieces.append(self._matcher.push(rest))
