"""One line in the engine: its prompts, the tokens generated so far, and callbacks when they end."""

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
    """One engine request: the n choices of one prompt. The engine host's reader thread calls it."""

    name: str
    """Its name in logs."""
    line: tuple[str, int]
    """The id of its batch and its line number."""
    output: RequestProgress
    on_done: Callable[[PromptRun], None] | None
    """None once it was called: it refers to the line that holds this prompt, and only the garbage collector frees such
    a cycle with all its tokens."""
    on_stopped: Callable[[int, int], None]
    """Called with (request id, index) when a stop string has ended a choice that the engine still computes."""
    on_computed: Callable[[int], None]
    """Called with the number of tokens that the engine has computed; the first call adds the prompt's uncached ones."""
    num_prompt_tokens: int
    num_broken: int = 0
    """How often a broken row has ended the line, on other workers and on this one."""
    is_broken: bool = False
    """Whether it ended with a broken row."""
    request_id: int | None = None
    """Set at submission."""
    is_done: bool = False
    times: SequenceTimes | None = None
    """The engine's times of the last choice that ended."""
    num_output_tokens: int = 0
    """Tokens that the engine has generated since the submission."""
    resumed_token_ids: Sequence[int] = ()
    """Tokens that an earlier run of the only choice generated."""
    _is_prompt_computed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, delta: TokenDelta) -> None:
        """Add tokens or an error and call the callbacks of choices that end; once done, ignore everything."""
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
        """Start from the tokens of an earlier run of the only choice; call it before the prompt is submitted."""
        self.resumed_token_ids = token_ids
        self.start_over()

    def start_over(self) -> None:
        """Drop all tokens since the submission."""
        with self._lock:
            if not self.is_done:
                self._is_prompt_computed = False
                self.num_output_tokens = 0
                self.output.resume(self.resumed_token_ids)

    def set_aside(self) -> None:
        """Start over on another engine after a broken row."""
        self.num_broken += 1
        self.start_over()

    def tokens_so_far(self) -> list[int]:
        """Return the first choice's tokens so far; none once it has ended, as there is nothing to resume."""
        with self._lock:
            return [] if self.is_done else list(self.output.children[0].token_ids)


class LineRun:
    """One line in the engine: a PromptRun for each of its prompts."""

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
        """`on_stopped`, `on_computed` and `num_broken` have the meaning they have in PromptRun."""
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
        """Return the tokens so far, from which another worker can resume; none if tokens alone do not suffice.

        Lines with several choices (which end at different times), with log-probabilities (which are not kept) or with
        a broken row are computed again.
        """
        params = self.prepared.params
        if self.num_broken or len(self.prompt_runs) > 1 or params.n > 1 or params.logprobs is not None:
            return []
        return self.prompt_runs[0].tokens_so_far()

    @property
    def num_broken(self) -> int:
        """Return how often a broken row has ended it, not counting its last end."""
        return max(run.num_broken for run in self.prompt_runs)

    @property
    def is_broken(self) -> bool:
        """Tell whether its last end was a broken row."""
        return any(run.is_broken for run in self.prompt_runs)

    @property
    def is_resumed(self) -> bool:
        """Tell whether it resumed from the output of an earlier worker."""
        return any(run.resumed_token_ids for run in self.prompt_runs)

    @property
    def error(self) -> str | None:
        return next((run.output.error for run in self.prompt_runs if run.output.error is not None), None)

    @property
    def request_ids_in_engine(self) -> list[int]:
        """Return the engine requests to abort when this line is released or stopped early."""
        return [run.request_id for run in self.prompt_runs if run.request_id is not None and run.output.is_in_engine]

    def _prompt_done(self, _: PromptRun) -> None:
        with self._lock:
            self._num_open -= 1
            is_last = self._num_open == 0
        if is_last:
            self._on_done(self)


def _name(prepared: PreparedLine, batch_id: str, index: int) -> str:
    """Return a prompt's name in logs; its line counts from 1, as in messages to users."""
    line = f"{batch_id} line {prepared.line_no + 1} custom_id={prepared.custom_id}"
    return f"{line} prompt {index + 1}" if len(prepared.prompts) > 1 else line
