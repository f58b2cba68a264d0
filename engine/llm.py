"""`LLM`: text or token ids in, finished results out, in order; the engine in this process with a tokenizer on top.

The names are those of vLLM's `LLM`. For a service, use `engine.process.parent` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.core import Engine
from engine.errors import InvalidRequestError
from engine.models.config import resolve_model_path
from engine.outputs import (
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestOutput,
    TokenDelta,
    TokenLogprobs,
)
from engine.params import SamplingParams
from engine.stats import EngineStats
from engine.text import TextStream, with_bad_words_as_tokens
from engine.tokenizer import load_tokenizer

Prompt = str | Sequence[int] | dict[str, Any]
"""Text, token ids, or vLLM's {"prompt": …} / {"prompt_token_ids": […]}."""


class LLM:
    """Load a model and generate. Keyword arguments are those of EngineConfig; not thread-safe.

    Without a tokenizer in the model's directory only token ids can be given and `text` is empty.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        path = resolve_model_path(str(model))
        self.engine = Engine(EngineConfig(model=str(path), **settings))
        self.tokenizer = load_tokenizer(path)
        self._next_request_id = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt and return the results in order.

        A request that can never run gets an output with finish_reason "error" and its reason in `error`; the others
        finish. Raises InvalidRequestError for text without a tokenizer, or parameters that do not match in number.
        """
        items = _as_list(prompts)
        params = _params_for(items, sampling_params)
        jobs = [self._job(item, own) for item, own in zip(items, params, strict=True)]
        return self._run(jobs)

    def chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Sequence[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Write each conversation in the model's chat template and generate the answers, in order."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts = [self._apply_template(messages, add_generation_prompt) for messages in conversations]
        return self.generate(prompts, sampling_params)

    def stats(self) -> EngineStats:
        """Return the engine's counters."""
        return self.engine.stats()

    def _apply_template(self, messages: Any, add_generation_prompt: bool) -> list[int]:
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            raise InvalidRequestError("This model has no chat template; use generate() with a prompt you wrote.")
        # The template writes its own special tokens; tokenizing its text again could add a second BOS.
        ids: list[int] = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=False
        )
        return ids

    def _job(self, item: Prompt, params: SamplingParams) -> _Job:
        if isinstance(item, dict):
            given: str | Sequence[int] = item["prompt_token_ids"] if "prompt_token_ids" in item else item["prompt"]
        else:
            given = item
        if self.tokenizer is None and (isinstance(given, str) or params.stop or params.bad_words):
            raise InvalidRequestError(
                "This model's directory has no tokenizer; give prompts as token ids, and no stop strings or bad words."
            )
        params = with_bad_words_as_tokens(params, self.tokenizer)
        token_ids = self.tokenizer(given)["input_ids"] if isinstance(given, str) else given
        self._next_request_id += 1
        return _Job(
            self._next_request_id, given if isinstance(given, str) else None, list(token_ids), params, self.tokenizer
        )

    def _run(self, jobs: list[_Job]) -> list[RequestOutput]:
        by_id = {job.request_id: job for job in jobs}
        for own in jobs:
            self.engine.add(own.request_id, own.prompt_token_ids, params=own.params)
        try:
            while self.engine.has_work:
                for delta in self.engine.step():
                    job = by_id.get(delta.request_id)  # None: left over from a call that was interrupted
                    if job is not None and job.take(delta):
                        self.engine.abort_children([(delta.request_id, delta.index)])
        except BaseException:
            self.engine.abort(by_id)
            raise
        return [job.output() for job in jobs]


class _Job:
    """One request while `LLM` runs it: its children's tokens and texts."""

    def __init__(
        self, request_id: int, prompt: str | None, prompt_token_ids: list[int], params: SamplingParams, tokenizer: Any
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self._tokenizer = tokenizer
        self._num_cached_tokens = 0
        self._prompt_logprobs: list[TokenLogprobs] | None = None
        self._children = [_Child(index, self, tokenizer) for index in range(params.n)]

    def take(self, delta: TokenDelta) -> bool:
        """Take a delta in; True when a stop string has just ended its child, which the engine is to drop."""
        if delta.index == 0:  # the others share what the first one has computed, which was not in the cache before
            self._num_cached_tokens = max(self._num_cached_tokens, delta.num_cached_tokens)
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        was_stopped = self._children[delta.index].is_stopped
        self._children[delta.index].take(delta)
        return self._children[delta.index].is_stopped and not was_stopped

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[child.output() for child in self._children],
            prompt_logprobs=self._named_prompt(),
            num_cached_tokens=self._num_cached_tokens,
        )

    def _named_prompt(self) -> list[dict[int, Logprob] | None] | None:
        if self._prompt_logprobs is None:
            return None
        pairs = zip(self.prompt_token_ids[1:], self._prompt_logprobs, strict=True)
        return [None, *(_named(token, entry, self._tokenizer) for token, entry in pairs)]


class _Child:
    """One child of a request: tokens, text, and why it ended."""

    def __init__(self, index: int, job: _Job, tokenizer: Any) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None
        self._error: str | None = None
        self._has_stops = bool(job.params.stop)
        wants_text = tokenizer is not None and job.params.detokenize and bool(job.prompt_token_ids)
        self._stream = TextStream(tokenizer, job.prompt_token_ids, job.params) if wants_text else None

    @property
    def is_stopped(self) -> bool:
        return isinstance(self._stop_reason, str)

    @property
    def is_done(self) -> bool:
        return self._finish_reason is not None

    def take(self, delta: TokenDelta) -> None:
        if self.is_done:
            return  # a stop string has ended it; the engine had one more step under way
        self._finish_reason, self._stop_reason, self._error = delta.finish_reason, delta.stop_reason, delta.error
        num_taken = self._show(delta.token_ids, ends_with_stop_token=delta.finish_reason is FinishReason.STOP)
        self._token_ids += delta.token_ids[:num_taken]
        self._logprobs += (delta.logprobs or [])[:num_taken]

    def _show(self, token_ids: list[int], *, ends_with_stop_token: bool) -> int:
        """Write the text of new tokens; return how many there are up to the one that completes a stop string."""
        if self._stream is None:
            return len(token_ids)
        # One by one only where a stop string may end the text before the last of them.
        size = 1 if self._has_stops else max(1, len(token_ids))
        for first in range(0, len(token_ids), size):
            is_last = first + size >= len(token_ids)
            self._stream.push(token_ids[first : first + size], ends_with_stop_token=is_last and ends_with_stop_token)
            if self._has_matched_stop():
                return first + size
        if self.is_done:
            self._stream.finish()
            self._has_matched_stop()
        return len(token_ids)

    def _has_matched_stop(self) -> bool:
        matched = self._stream.matched_stop if self._stream is not None else None
        if matched is not None:
            self._finish_reason, self._stop_reason = FinishReason.STOP, matched
        return matched is not None

    def output(self) -> CompletionOutput:
        pairs = zip(self._token_ids, self._logprobs, strict=False)
        logprobs = [_named(token, entry, self._tokenizer) for token, entry in pairs]
        return CompletionOutput(
            index=self._index,
            text=self._stream.text if self._stream else "",
            token_ids=self._token_ids,
            cumulative_logprob=sum(entry.logprob for entry in self._logprobs) if self._logprobs else None,
            logprobs=logprobs or None,
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            error=self._error,
        )


def _named(token_id: int, entry: TokenLogprobs, tokenizer: Any) -> dict[int, Logprob]:
    ranked = enumerate(zip(entry.top_token_ids, entry.top_logprobs, strict=True), start=1)
    named = {token: _logprob(token, value, rank=rank, tokenizer=tokenizer) for rank, (token, value) in ranked}
    named.setdefault(token_id, _logprob(token_id, entry.logprob, rank=entry.rank, tokenizer=tokenizer))
    return named


def _logprob(token_id: int, value: float, *, rank: int, tokenizer: Any) -> Logprob:
    decoded = tokenizer.decode([token_id]) if tokenizer is not None else None
    return Logprob(logprob=value, rank=rank, decoded_token=decoded)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    is_single = isinstance(prompts, str | dict) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if is_single else list(prompts)  # type: ignore[list-item,arg-type]


def _params_for(items: list[Prompt], given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * len(items)
    if len(given) != len(items):
        raise InvalidRequestError(f"{len(given)} sampling_params for {len(items)} prompts; give one, or one for each.")
    return list(given)
