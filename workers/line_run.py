"""One line while it is in the engine: takes its tokens as they come, and ends its choices at their stop strings.

Token ids and finish reasons; what an answer looks like is none of its business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.params import SamplingParams
from engine.process.messages import FinishReason, TokenDelta, TokenLogprobs
from engine.text import TextStream
from workers.prompts import PreparedLine

_STOP, _LENGTH = "stop", "length"


class Choice:
    """One sequence as it grows. Text is made of it on the way only where a stop string is to be found.

    `finish_reason` is set once it has ended. `ended_before_engine` tells that a stop string did it: the engine knows
    nothing of stop strings and computes on until it is told.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._params = params
        self.clear()

    def clear(self) -> None:
        """Forget everything, to begin again."""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.ended_before_engine = False
        self._ends_with_stop_token = False
        self._searched = self._new_stream() if self._params.stop else None

    def resume(self, token_ids: Sequence[int]) -> None:
        """Begin with the output of an earlier run, in which no stop string was complete."""
        self.clear()
        self.token_ids = list(token_ids)
        if self._searched is not None:
            self._searched.push(self.token_ids)

    def take(self, delta: TokenDelta) -> None:
        """Take new tokens; with stop strings one by one, so that none after a stop string is counted."""
        ends_with_stop_token = delta.finish_reason is FinishReason.STOP
        for position, token_id in enumerate(delta.token_ids):
            self.token_ids.append(token_id)
            if delta.logprobs is not None:
                self.logprobs.append(delta.logprobs[position])
            if self._searched is not None:
                is_last = position == len(delta.token_ids) - 1
                self._searched.push([token_id], ends_with_stop_token=is_last and ends_with_stop_token)
                if self._searched.matched_stop is not None:
                    self.finish_reason = _STOP
                    self.ended_before_engine = delta.finish_reason is None
                    return
        if delta.finish_reason is not None:
            self._ends_with_stop_token = ends_with_stop_token
            self.finish_reason = _STOP if self._ends_with_stop_token else _LENGTH
            if self._searched is not None:
                self._searched.finish()

    @property
    def has_ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def has_logprobs(self) -> bool:
        """Tell whether log-probabilities were asked for."""
        return self._params.logprobs is not None

    @property
    def shown_token_ids(self) -> list[int]:
        """Return the tokens that are text: all but the stop or end-of-sequence token that ended them."""
        return self.token_ids[:-1] if self._ends_with_stop_token else self.token_ids

    def text(self) -> str:
        """Return the whole text, once it has ended; without stop strings it is decoded here, by whoever asks."""
        if self._searched is not None:
            return self._searched.text
        stream = self._new_stream()
        stream.push(self.token_ids, ends_with_stop_token=self._ends_with_stop_token)
        stream.finish()
        return stream.text

    def _new_stream(self) -> TextStream:
        return TextStream(self._tokenizer, self._prompt, self._params)


@dataclass(slots=True, kw_only=True)
class PromptRun:
    """Owner of one engine request: the n choices of one prompt. Called by the engine host's reader thread.

    `name` is what logs call it. `on_stopped(request id, index)` is called when a stop string has ended a choice that
    the engine still computes.
    """

    name: str
    choices: list[Choice]
    on_done: Callable[[PromptRun], None]
    on_stopped: Callable[[int, int], None]
    request_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    is_done: bool = False
    resumed_token_ids: Sequence[int] = ()
    prompt_logprobs: list[TokenLogprobs] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, delta: TokenDelta) -> None:
        """Receive tokens or an error, and tell of the ends that they bring; after the last one nothing counts."""
        with self._lock:
            if self.is_done:
                return
            choice = self.choices[delta.index]
            was_stopped = choice.ended_before_engine
            if delta.error is not None:
                self.error = delta.error
            else:
                self._take_tokens(choice, delta)
            is_stopped_now = choice.ended_before_engine and not was_stopped
            self.is_done = self.error is not None or all(choice.has_ended for choice in self.choices)
        if is_stopped_now:
            self.on_stopped(delta.request_id, delta.index)
        if self.is_done:
            self.on_done(self)

    def resume(self, token_ids: Sequence[int]) -> None:
        """Begin with what an earlier run of the only choice generated; call it before the prompt is submitted."""
        self.resumed_token_ids = token_ids
        self.start_over()

    def start_over(self) -> None:
        """Forget all tokens since the submission."""
        with self._lock:
            if not self.is_done:
                self.num_cached_tokens = 0
                for choice in self.choices:
                    choice.resume(self.resumed_token_ids)

    @property
    def is_in_engine(self) -> bool:
        """Tell whether the engine may still compute something of it."""
        return not self.is_done or any(choice.ended_before_engine for choice in self.choices)

    def tokens_so_far(self) -> list[int]:
        """Return the first choice's tokens, none once it has ended: there is nothing after them."""
        with self._lock:
            return [] if self.is_done else list(self.choices[0].token_ids)

    def _take_tokens(self, choice: Choice, delta: TokenDelta) -> None:
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if choice.has_ended:
            return  # tokens that were under way when its stop string was found
        if delta.index == 0:  # the others share what the first one has computed, which was not in the cache before
            self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        choice.take(delta)


class LineRun:
    """One line while it is in the engine: a PromptRun for each of its prompts."""

    def __init__(
        self,
        prepared: PreparedLine,
        tokenizer: Any,
        *,
        batch_id: str,
        on_done: Callable[[LineRun], None],
        on_stopped: Callable[[int, int], None],
    ) -> None:
        """`on_stopped` is that of PromptRun."""
        self.prepared = prepared
        self._on_done = on_done
        self._lock = threading.Lock()
        self._num_open = len(prepared.prompts)
        self.prompt_runs = [
            PromptRun(
                name=_name(prepared, batch_id, place),
                choices=[Choice(tokenizer, prompt, prepared.params) for _ in range(prepared.params.n)],
                on_done=self._prompt_done,
                on_stopped=on_stopped,
            )
            for place, prompt in enumerate(prepared.prompts)
        ]

    @property
    def checkpoint(self) -> list[int]:
        """Return the tokens so far, for another worker to go on with; none where it would need more than tokens.

        Several choices end at different times and log-probabilities are not kept: such lines are computed again.
        """
        params = self.prepared.params
        if len(self.prompt_runs) > 1 or params.n > 1 or params.logprobs is not None:
            return []
        return self.prompt_runs[0].tokens_so_far()

    @property
    def is_resumed(self) -> bool:
        """Tell whether it went on after the output of an earlier worker."""
        return any(run.resumed_token_ids for run in self.prompt_runs)

    @property
    def error(self) -> str | None:
        return next((run.error for run in self.prompt_runs if run.error is not None), None)

    @property
    def request_ids_in_engine(self) -> list[int]:
        """Return the engine requests that are to be aborted when this line is given up or stopped early."""
        return [run.request_id for run in self.prompt_runs if run.request_id is not None and run.is_in_engine]

    def _prompt_done(self, _: PromptRun) -> None:
        with self._lock:
            self._num_open -= 1
            is_last = self._num_open == 0
        if is_last:
            self._on_done(self)


def _name(prepared: PreparedLine, batch_id: str, place: int) -> str:
    """Return what logs call a prompt, its line counted from 1 as in messages to users."""
    line = f"{batch_id} line {prepared.line.line_no + 1} custom_id={prepared.line.custom_id}"
    return f"{line} prompt {place + 1}" if len(prepared.prompts) > 1 else line
