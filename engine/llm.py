"""`LLM`: text or token ids in, finished results out, in order; the engine in this process with a tokenizer on top.

The names are those of vLLM's `LLM`. For a service, use `engine.process` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.core import Engine
from engine.errors import InvalidRequestError, ModelLoadError
from engine.model_config import resolve_model_path
from engine.outputs import (
    CompletionOutput,
    EngineStats,
    FinishReason,
    Logprob,
    RequestOutput,
    TokenDelta,
    TokenLogprobs,
)
from engine.params import SamplingParams
from engine.text import TextStream

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
        if self.tokenizer is None and (isinstance(given, str) or params.stop):
            raise InvalidRequestError(
                "This model's directory has no tokenizer; give prompts as token ids, and no stop strings."
            )
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
                        self.engine.abort([delta.request_id])
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
        self._num_cached_tokens = 0
        self._children = [_Child(index, self, tokenizer) for index in range(params.n)]

    def take(self, delta: TokenDelta) -> bool:
        """Take a delta in; True when a stop string has now ended every child, so that the engine may drop them."""
        self._num_cached_tokens = max(self._num_cached_tokens, delta.num_cached_tokens)
        was_stopped = self._children[delta.index].is_stopped
        self._children[delta.index].take(delta)
        is_newly_stopped = self._children[delta.index].is_stopped and not was_stopped
        return is_newly_stopped and all(child.is_done for child in self._children)

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[child.output() for child in self._children],
            num_cached_tokens=self._num_cached_tokens,
        )


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
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs or []
        self._finish_reason, self._stop_reason, self._error = delta.finish_reason, delta.stop_reason, delta.error
        if self._stream is None:
            return
        self._stream.push(delta.token_ids, ends_with_stop_token=delta.finish_reason is FinishReason.STOP)
        if self.is_done:
            self._stream.finish()
        if self._stream.matched_stop is not None:
            self._finish_reason, self._stop_reason = FinishReason.STOP, self._stream.matched_stop

    def output(self) -> CompletionOutput:
        logprobs = [self._named(token, entry) for token, entry in zip(self._token_ids, self._logprobs, strict=False)]
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

    def _named(self, token_id: int, entry: TokenLogprobs) -> dict[int, Logprob]:
        ranked = enumerate(zip(entry.top_token_ids, entry.top_logprobs, strict=True), start=1)
        named = {token: self._logprob(token, value, rank) for rank, (token, value) in ranked}
        named.setdefault(token_id, self._logprob(token_id, entry.logprob, entry.rank))
        return named

    def _logprob(self, token_id: int, value: float, rank: int) -> Logprob:
        decoded = self._tokenizer.decode([token_id]) if self._tokenizer is not None else None
        return Logprob(logprob=value, rank=rank, decoded_token=decoded)


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer of a model's directory, None when it has none. Raises ModelLoadError when it is broken."""
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    from transformers import AutoTokenizer  # noqa: PLC0415 - a slow import that token ids do not need

    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"The tokenizer in {path} cannot be loaded: {reason}.") from error


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    is_single = isinstance(prompts, str | dict) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if is_single else list(prompts)  # type: ignore[list-item,arg-type]


def _params_for(items: list[Prompt], given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * len(items)
    if len(given) != len(items):
        raise InvalidRequestError(f"{len(given)} sampling_params for {len(items)} prompts; give one, or one for each.")
    return list(given)
