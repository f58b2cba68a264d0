"""One line while it is in the engine: its prompts, what they have generated, and who hears of their ends.

What an answer looks like is none of its business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.child_output import RequestProgress
from engine.outputs import SequenceTimes
from engine.process.messages import TokenDelta
from workers.prompts import PreparedLine


@dataclass(slots=True, kw_only=True)
class PromptRun:
    """Owner of one engine request: the n choices of one prompt. Called by the engine host's reader thread."""

    name: str
    """What logs call it."""
    line: tuple[str, int]
    """The id of its batch, and the number of its line."""
    output: RequestProgress
    on_done: Callable[[PromptRun], None] | None
    """None once it was called: it leads to the line that holds this prompt, and what holds each other is freed, tokens
    and all, by a garbage collection alone."""
    on_stopped: Callable[[int, int], None]
    """Called with (request id, index) when a stop string has ended a choice that the engine still computes."""
    on_computed: Callable[[int], None]
    """Called with numbers of tokens that the engine has computed: the prompt's, but for cached ones, with the first."""
    num_prompt_tokens: int
    num_broken: int = 0
    """How often a broken row has ended the line: before, on other workers, and since."""
    is_broken: bool = False
    """Whether the error that it has ended with is a broken row."""
    request_id: int | None = None
    """Set by whoever submits it."""
    is_done: bool = False
    times: SequenceTimes | None = None
    """Of the last choice that ended, as the engine tells it."""
    num_output_tokens: int = 0
    """That the engine has generated since the submission."""
    resumed_token_ids: Sequence[int] = ()
    """What an earlier run of the only choice generated."""
    _is_prompt_computed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, delta: TokenDelta) -> None:
        """Receive tokens or an error, and tell of the ends that they bring; after the last one nothing counts."""
        with self._lock:
            if self.is_done:
                return
            self.num_output_tokens += len(delta.token_ids)
            self.on_computed(self._num_computed(delta))
            is_stopped_now = self.output.add(delta)
            self.times = delta.times or self.times
            self.is_broken = delta.is_broken
            self.is_done = self.output.has_ended
        if is_stopped_now:
            self.on_stopped(delta.request_id, delta.index)
        if self.is_done and self.on_done is not None:
            self.on_done(self)
            self.on_done = None

    def _num_computed(self, delta: TokenDelta) -> int:
        if self._is_prompt_computed or not delta.token_ids:
            return len(delta.token_ids)
        self._is_prompt_computed = True
        prompt = self.num_prompt_tokens + len(self.resumed_token_ids) - delta.num_cached_tokens
        return len(delta.token_ids) + max(prompt, 0)

    def resume(self, token_ids: Sequence[int]) -> None:
        """Begin with what an earlier run of the only choice generated; call it before the prompt is submitted."""
        self.resumed_token_ids = token_ids
        self.start_over()

    def start_over(self) -> None:
        """Forget all tokens since the submission."""
        with self._lock:
            if not self.is_done:
                self._is_prompt_computed = False
                self.num_output_tokens = 0
                self.output.resume(self.resumed_token_ids)

    def set_aside(self) -> None:
        """Begin again after a broken row, on another engine."""
        self.num_broken += 1
        self.start_over()

    def tokens_so_far(self) -> list[int]:
        """Return the first choice's tokens, none once it has ended: there is nothing after them."""
        with self._lock:
            return [] if self.is_done else list(self.output.children[0].token_ids)


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
        on_computed: Callable[[int], None] = lambda num_tokens: None,
        num_broken: int = 0,
    ) -> None:
        """`on_stopped`, `on_computed` and `num_broken` are those of PromptRun."""
        self.prepared = prepared
        self._on_done = on_done
        self._lock = threading.Lock()
        self._num_open = len(prepared.prompts)
        self.prompt_runs = [
            PromptRun(
                name=_name(prepared, batch_id, index),
                line=(batch_id, prepared.line_no),
                output=RequestProgress(tokenizer, prompt, prepared.params),
                on_done=self._prompt_done,
                on_stopped=on_stopped,
                on_computed=on_computed,
                num_prompt_tokens=len(prompt),
                num_broken=num_broken,
            )
            for index, prompt in enumerate(prepared.prompts)
        ]

    @property
    def checkpoint(self) -> list[int]:
        """Return the tokens so far, for another worker to go on with; none where it would need more than tokens.

        Several choices end at different times and log-probabilities are not kept: such lines are computed again, as
        are those whose row was broken.
        """
        params = self.prepared.params
        if self.num_broken or len(self.prompt_runs) > 1 or params.n > 1 or params.logprobs is not None:
            return []
        return self.prompt_runs[0].tokens_so_far()

    @property
    def num_broken(self) -> int:
        """Return how often a broken row has ended it, not counting the end that is its last."""
        return max(run.num_broken for run in self.prompt_runs)

    @property
    def is_broken(self) -> bool:
        """Tell whether a broken row was its last end."""
        return any(run.is_broken for run in self.prompt_runs)

    @property
    def is_resumed(self) -> bool:
        """Tell whether it went on after the output of an earlier worker."""
        return any(run.resumed_token_ids for run in self.prompt_runs)

    @property
    def error(self) -> str | None:
        return next((run.output.error for run in self.prompt_runs if run.output.error is not None), None)

    @property
    def request_ids_in_engine(self) -> list[int]:
        """Return the engine requests that are to be aborted when this line is given up or stopped early."""
        return [run.request_id for run in self.prompt_runs if run.request_id is not None and run.output.is_in_engine]

    def _prompt_done(self, _: PromptRun) -> None:
        with self._lock:
            self._num_open -= 1
            is_last = self._num_open == 0
        if is_last:
            self._on_done(self)


def _name(prepared: PreparedLine, batch_id: str, index: int) -> str:
    """Return what logs call a prompt, its line counted from 1 as in messages to users."""
    line = f"{batch_id} line {prepared.line_no + 1} custom_id={prepared.custom_id}"
    return f"{line} prompt {index + 1}" if len(prepared.prompts) > 1 else line
