"""From tokens to the answer of a line: collects choices, finds stop strings, builds the body. No engine, no SQL."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.messages import FinishReason, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from engine.text import StopMatcher, TextStream
from jobs.bodies import CHAT_ENDPOINT
from jobs.responses import (
    GeneratedChoice,
    PromptLogprobs,
    TokenLogprob,
    Usage,
    chat_completion_body,
    text_completion_body,
)
from workers.prompts import PreparedLine
from workers.shown_logprobs import ShownLogprobs

_STOP, _LENGTH = "stop", "length"


class _Choice:
    """One sequence as it grows. Without stop strings its text is decoded once, at the end."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._params = params
        self.clear()

    def clear(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.ends_with_stop_token = False
        self._stream = TextStream(self._tokenizer, self._prompt, self._params)

    def resume(self, token_ids: Sequence[int]) -> None:
        """Begin with the output of an earlier run, in which no stop string was complete."""
        self.clear()
        self.token_ids = list(token_ids)
        if self._params.stop:
            self._stream.push(self.token_ids, ends_with_stop_token=False)

    def push(self, delta: TokenDelta) -> None:
        """Take new tokens; with stop strings one by one, so that none after a stop string is counted."""
        self.ends_with_stop_token = delta.finish_reason is FinishReason.STOP
        for position, token_id in enumerate(delta.token_ids):
            self.token_ids.append(token_id)
            if delta.logprobs is not None:
                self.logprobs.append(delta.logprobs[position])
            if self._params.stop and self._finds_stop(token_id, is_last=position == len(delta.token_ids) - 1):
                self.finish_reason = _STOP
                return
        if delta.finish_reason is not None:
            self.finish_reason = _STOP if self.ends_with_stop_token else _LENGTH

    def text(self) -> str:
        """Return the whole text; the sequence is finished."""
        if not self._params.stop:
            self._stream.push(self.token_ids, ends_with_stop_token=self.ends_with_stop_token)
        self._stream.finish()
        return self._stream.text

    @property
    def has_logprobs(self) -> bool:
        """Tell whether log-probabilities were asked for."""
        return self._params.logprobs is not None

    def shown_token_ids(self) -> list[int]:
        """Return the tokens that are text: all but the stop or end-of-sequence token that ended them."""
        return self.token_ids[:-1] if self.ends_with_stop_token else self.token_ids

    def _finds_stop(self, token_id: int, *, is_last: bool) -> bool:
        self._stream.push([token_id], ends_with_stop_token=is_last and self.ends_with_stop_token)
        return self._stream.matched_stop is not None


@dataclass(slots=True)
class PromptRun:
    """Owner of one engine request: the n choices of one prompt. Called by the engine host's reader thread.

    `name` is what logs call it.

    `on_stopped(request id, index)` is called when a stop string has ended a choice that the engine still computes.
    """

    name: str
    choices: list[_Choice]
    on_done: Callable[["PromptRun"], None]
    on_stopped: Callable[[int, int], None]
    request_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    is_done: bool = False
    stopped_early: bool = False  # by a stop string: the engine still runs it and is to be told
    resumed_token_ids: Sequence[int] = ()
    prompt_logprobs: list[TokenLogprobs] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, delta: TokenDelta) -> None:
        has_stopped = False
        with self._lock:
            if self.is_done:
                return
            if delta.error is not None:
                self.error = delta.error
            else:
                has_stopped = self._take_tokens(delta)
            self.is_done = self.error is not None or all(choice.finish_reason for choice in self.choices)
        if has_stopped:
            self.on_stopped(delta.request_id, delta.index)
        if self.is_done:
            self.on_done(self)

    def resume(self, token_ids: Sequence[int]) -> None:
        """Begin with what an earlier run of the only choice generated; call it before the prompt is submitted."""
        self.resumed_token_ids = token_ids
        self.start_over()

    def start_over(self) -> None:
        with self._lock:
            if not self.is_done:
                self.num_cached_tokens = 0
                self.stopped_early = False
                for choice in self.choices:
                    choice.resume(self.resumed_token_ids)

    def tokens_so_far(self) -> list[int]:
        """Return the first choice's tokens, none once it has ended: there is nothing after them."""
        with self._lock:
            return [] if self.is_done else list(self.choices[0].token_ids)

    def _take_tokens(self, delta: TokenDelta) -> bool:
        """Return whether a stop string has just ended the choice, of which the engine knows nothing."""
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        choice = self.choices[delta.index]
        if choice.finish_reason is not None:
            return False  # tokens that were under way when its stop string was found
        if delta.index == 0:  # the others share what the first one has computed, which was not in the cache before
            self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        choice.push(delta)
        has_stopped = choice.finish_reason is not None and delta.finish_reason is None
        self.stopped_early |= has_stopped
        return has_stopped


def _name(prepared: PreparedLine, batch_id: str, place: int) -> str:
    """Return what logs call a prompt, its line counted from 1 as in messages to users."""
    line = f"{batch_id} line {prepared.line.line_no + 1} custom_id={prepared.line.custom_id}"
    return f"{line} prompt {place + 1}" if len(prepared.prompts) > 1 else line


class LineRun:
    """One line while it is in the engine: a PromptRun for each of its prompts."""

    def __init__(
        self,
        prepared: PreparedLine,
        tokenizer: Any,
        *,
        batch_id: str,
        on_done: Callable[["LineRun"], None],
        on_stopped: Callable[[int, int], None],
    ) -> None:
        """`on_stopped` is that of PromptRun."""
        self.prepared = prepared
        self._on_done = on_done
        self._lock = threading.Lock()
        self._num_open = len(prepared.prompts)
        self.prompt_runs = [
            PromptRun(
                _name(prepared, batch_id, place),
                [_Choice(tokenizer, prompt, prepared.params) for _ in range(prepared.params.n)],
                self._prompt_done,
                on_stopped,
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
    def unfinished_request_ids(self) -> list[int]:
        """Return the engine requests that are to be aborted when this line is given up or stopped early."""
        return [
            run.request_id
            for run in self.prompt_runs
            if run.request_id is not None and (not run.is_done or run.stopped_early)
        ]

    def _prompt_done(self, _: PromptRun) -> None:
        with self._lock:
            self._num_open -= 1
            is_last = self._num_open == 0
        if is_last:
            self._on_done(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response body of a line and what it cost."""

    body: dict[str, Any]
    usage: Usage


class AnswerMaker:
    """Builds response bodies under one model's served name."""

    def __init__(self, tokenizer: Any, *, model: str) -> None:
        self._shown = ShownLogprobs(tokenizer)
        self._tokenizer = tokenizer
        self._model = model

    def make(self, run: LineRun, *, response_id: str, created: int) -> Answer:
        """Build the answer of a finished line; `created` is in Unix seconds."""
        pairs = [(prompt, choice) for prompt in self._prompts(run) for choice in prompt.run.choices]
        usage = Usage(
            prompt_tokens=run.prepared.num_prompt_tokens,
            completion_tokens=sum(len(choice.token_ids) for _, choice in pairs),
            cached_tokens=sum(prompt_run.num_cached_tokens for prompt_run in run.prompt_runs),
        )
        build = chat_completion_body if run.prepared.endpoint == CHAT_ENDPOINT else text_completion_body
        body = build(
            response_id,
            self._model,
            created=created,
            choices=[
                self._with_calls(self._generated(*pair, index=index), pair[1], run.prepared)
                for index, pair in enumerate(pairs)
            ],
            usage=usage,
        )
        return Answer(body=body, usage=usage)

    def _prompts(self, run: LineRun) -> list["_Prompt"]:
        """Return what the answer shows of each prompt."""
        prepared, shown = run.prepared, self._shown
        echoes = prepared.echoes or [""] * len(prepared.prompts)
        found = []
        for token_ids, prompt_run, echo in zip(prepared.prompts, run.prompt_runs, echoes, strict=True):
            given = prompt_run.prompt_logprobs
            echoed = given if prepared.echoes and prepared.params.logprobs is not None else None
            count = prepared.num_prompt_logprobs
            found.append(
                _Prompt(
                    run=prompt_run,
                    echo=echo,
                    echoed=[] if echoed is None else shown.of_prompt(token_ids, echoed, prepared.params.logprobs or 0),
                    ranked=None if given is None or count is None else shown.ranked(token_ids, given, count),
                )
            )
        return found

    def _generated(self, prompt: "_Prompt", choice: _Choice, *, index: int) -> GeneratedChoice:
        assert choice.finish_reason is not None, "the line is finished"
        logprobs = None
        if choice.has_logprobs:
            logprobs = [*prompt.echoed, *self._shown.of_tokens(choice.shown_token_ids(), choice.logprobs)]
        return GeneratedChoice(
            index=index,
            text=prompt.echo + choice.text(),
            finish_reason=choice.finish_reason,
            logprobs=logprobs,
            prompt_logprobs=prompt.ranked,
        )

    def _with_calls(self, generated: GeneratedChoice, choice: _Choice, prepared: PreparedLine) -> GeneratedChoice:
        """Move the tool calls of an output out of its text, up to the first stop string."""
        if prepared.calls is None:
            return generated
        # Some models mark calls with special tokens, which the text leaves out.
        whole = self._tokenizer.decode(choice.shown_token_ids(), skip_special_tokens=False)
        stops = StopMatcher(prepared.params.stop, include_stop=prepared.params.include_stop_str_in_output)
        found = prepared.calls.read(stops.push(whole) + stops.finish())
        if found is None:
            return generated
        text, calls = found
        return replace(generated, text=text, tool_calls=calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """What the choices of one prompt share in the answer."""

    run: PromptRun
    echo: str
    echoed: list[TokenLogprob]
    ranked: PromptLogprobs | None
