"""The output of a request so far, per child: tokens, log-probabilities, text, and the end at a stop string.

Input is token deltas; of a tokenizer only `decode` is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.detokenizer import Detokenizer, Tokenizer
from engine.outputs import FinishReason, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from engine.text import TextStream


class ChildOutput:
    """The output of one child as it grows. Text is decoded on the way only if there are stop strings to search for."""

    def __init__(self, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Without a tokenizer there is no text, and stop strings are not searched for."""
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._params = params
        self.clear()

    def clear(self) -> None:
        """Reset to the empty output."""
        self.token_ids: list[int] = []
        """Tokens after a stop string are left out."""
        self.logprobs: list[TokenLogprobs] = []
        """One for each token, or empty."""
        self.finish_reason: FinishReason | None = None
        """Set when the child has ended."""
        self.stop_reason: int | str | None = None
        """The stop token or stop string that ended it."""
        self.error: str | None = None
        self.num_preemptions = self.num_swaps = 0
        """As in the last delta."""
        self.ended_before_engine = False
        """A stop string ended it: the engine does not search for stop strings and computes on until the child is
        aborted.
        """
        self._ends_with_stop_token = False
        self._searched = self._new_search()

    def resume(self, token_ids: Sequence[int]) -> None:
        """Start from the output of an earlier run, in which no stop string was complete."""
        self.clear()
        self.token_ids = list(token_ids)
        if self._searched is not None:
            self._searched.push(self.token_ids)

    def add(self, delta: TokenDelta) -> None:
        """Add new tokens, up to the one that completes a stop string. Deltas after the end are ignored."""
        if self.finish_reason is not None:
            return  # in flight when the stop string was found
        self.num_preemptions, self.num_swaps = delta.num_preemptions, delta.num_swaps
        if self._searched is not None and self._ends_at_stop_string(self._searched, delta):
            return
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            self._end(delta)

    @property
    def has_ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def has_logprobs(self) -> bool:
        """Tell whether log-probabilities were requested."""
        return self._params.logprobs is not None

    @property
    def shown_token_ids(self) -> list[int]:
        """Return the tokens that have text: all except a final stop or end-of-sequence token."""
        return self.token_ids[:-1] if self._ends_with_stop_token else self.token_ids

    def text(self) -> str:
        """Return the whole text of an ended child; without stop strings it is decoded on this call."""
        if self._searched is not None:
            return self._searched.text
        has_stop = self._params.include_stop_str_in_output
        return self._text_of(self.token_ids if has_stop else self.shown_token_ids, self._params)

    def text_with_special_tokens(self) -> str:
        """Return the whole text of an ended child, with all special tokens except the one that ended it."""
        return self._text_of(self.shown_token_ids, replace(self._params, skip_special_tokens=False))

    def part_text(
        self, first: int, token_ids: Sequence[int], *, behind: int = 0, has_special_tokens: bool = False
    ) -> str:
        """Return the text of some of an ended child's tokens, the first of which is its token number `first`.

        It ends at a stop string, as the whole text does. What is before token number `behind` is another text: a letter
        whose bytes were cut there is not shown.
        """
        params = self._params
        if has_special_tokens:
            params = replace(params, skip_special_tokens=False)
        if params.stop:
            params = replace(params, min_tokens=max(0, params.min_tokens - first))
        before = self.token_ids[behind:first]
        context = before if behind else [*self._prompt_token_ids, *before]
        return self._text_of(token_ids, params, context=context)

    def _new_search(self) -> TextStream | None:
        if self._tokenizer is None or not self._params.stop:
            return None
        return TextStream(self._tokenizer, self._prompt_token_ids, self._params)

    def _text_of(
        self, token_ids: Sequence[int], params: SamplingParams, *, context: Sequence[int] | None = None
    ) -> str:
        """Return the text of tokens behind `context`, or else behind the prompt."""
        if self._tokenizer is None:
            return ""
        context = self._prompt_token_ids if context is None else context
        if not params.stop:
            skip = params.skip_special_tokens
            return Detokenizer(self._tokenizer, context, skip_special_tokens=skip).whole(token_ids)
        stream = TextStream(self._tokenizer, context, params)
        stream.push(token_ids)
        stream.finish()
        return stream.text

    def _ends_at_stop_string(self, stream: TextStream, delta: TokenDelta) -> bool:
        """Add the text of new tokens; if one completes a stop string, keep the tokens up to it and end."""
        count = stream.push(delta.token_ids, ends_with_stop_token=delta.finish_reason is FinishReason.STOP)
        if stream.matched_stop is None:
            return False
        self.token_ids += delta.token_ids[:count]
        self.logprobs += (delta.logprobs or [])[:count]
        self.finish_reason, self.stop_reason = FinishReason.STOP, stream.matched_stop
        self.ended_before_engine = delta.finish_reason is None
        return True

    def _end(self, delta: TokenDelta) -> None:
        self.finish_reason, self.stop_reason, self.error = delta.finish_reason, delta.stop_reason, delta.error
        self._ends_with_stop_token = delta.finish_reason is FinishReason.STOP
        if self._searched is not None:
            self._searched.finish()
            if self._searched.matched_stop is not None:  # in text that was held back
                self.finish_reason, self.stop_reason = FinishReason.STOP, self._searched.matched_stop


class RequestProgress:
    """The children of one request and their shared values."""

    def __init__(self, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self.children = [ChildOutput(tokenizer, prompt_token_ids, params) for _ in range(params.n)]
        self.num_cached_tokens = 0
        """Prompt tokens found in the prefix cache."""
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        """If requested: one entry for each prompt token from the second on."""
        self.error: str | None = None
        """Why the request was refused or ended with an error."""

    def add(self, delta: TokenDelta) -> bool:
        """Add new tokens; return True when a stop string has just ended a child that the engine still computes."""
        child = self.children[delta.index]
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.error is not None:
            self.error = delta.error
        if child.has_ended:
            return False
        if delta.index == 0:  # the other children reuse what child 0 computed, which was not in the cache before
            self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        child.add(delta)
        return child.ended_before_engine

    def resume(self, token_ids: Sequence[int]) -> None:
        """Start from the output of an earlier run; from the prompt if there is none."""
        self.num_cached_tokens = 0
        for child in self.children:
            child.resume(token_ids)

    @property
    def num_preemptions(self) -> int:
        """Return how often children have been preempted."""
        return sum(child.num_preemptions for child in self.children)

    @property
    def num_swaps(self) -> int:
        """Return how often preempted children's blocks went to host memory."""
        return sum(child.num_swaps for child in self.children)

    @property
    def has_ended(self) -> bool:
        """Tell whether no more output will come; the engine may still have to abort children."""
        return self.error is not None or all(child.has_ended for child in self.children)

    @property
    def is_in_engine(self) -> bool:
        """Tell whether the engine may still be computing a part of it."""
        return not self.has_ended or any(child.ended_before_engine for child in self.children)
