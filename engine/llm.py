"""`LLM`: text or token ids in, finished results out, in order; the engine in this process with a tokenizer on top.

The names are those of vLLM's `LLM`. For a service, use `engine.process.parent` instead.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from numbers import Integral, Number
from pathlib import Path
from typing import Any

from engine.build import build_engine
from engine.child_output import ChildOutput, RequestProgress
from engine.config import EngineConfig
from engine.detokenizer import text_of_token
from engine.errors import InvalidRequestError
from engine.intake import check_prompt_token_ids
from engine.models.paths import resolve_model_path
from engine.outputs import CompletionOutput, FinishReason, Logprob, RequestOutput, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from engine.stats import EngineStats
from engine.text import with_bad_words_as_tokens
from engine.tokenizer import load_tokenizer

Prompt = str | Sequence[int] | dict[str, Any]
"""Text, token ids, or vLLM's {"prompt": …} / {"prompt_token_ids": […]}."""


class LLM:
    """Load a model and generate. Keyword arguments are those of EngineConfig; not thread-safe.

    Without a tokenizer in the model's files only token ids can be given and `text` is empty.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        path = resolve_model_path(str(model))
        self.engine = build_engine(EngineConfig(model=str(path), **settings))
        self.tokenizer = load_tokenizer(path)
        self._next_request_id = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt and return the results in order.

        A request that can never run, or whose prompt is none, gets an output with finish_reason "error" and its reason
        in `error`; the others finish. Raises InvalidRequestError for text without a tokenizer, or parameters that do
        not match in number.
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

    def _job(self, item: Any, params: SamplingParams) -> _Job:
        given = _prompt_of(item)
        if self.tokenizer is None and (isinstance(given, str) or params.stop or params.bad_words):
            raise InvalidRequestError(
                "This model's directory has no tokenizer; give prompts as token ids, and no stop strings or bad words."
            )
        params = with_bad_words_as_tokens(params, self.tokenizer)
        self._next_request_id += 1
        text = given if isinstance(given, str) else None
        try:
            token_ids = self._token_ids(given)
        except InvalidRequestError as error:
            return _Job(self._next_request_id, text, [], params, self.tokenizer, refusal=str(error))
        return _Job(self._next_request_id, text, token_ids, params, self.tokenizer)

    def _token_ids(self, given: object) -> list[int]:
        """Return the tokens of a prompt. Raises InvalidRequestError when it is none."""
        if isinstance(given, str):
            _check_text(given)
            token_ids: list[int] = self.tokenizer(given)["input_ids"]
            return token_ids
        found = _whole_numbers(given)
        check_prompt_token_ids(found, vocab_size=self.engine.info.vocab_size)
        return found

    def _run(self, jobs: list[_Job]) -> list[RequestOutput]:
        by_id = {job.request_id: job for job in jobs}
        for own in jobs:
            if own.progress.has_ended:
                continue
            self.engine.add(
                NewRequest(request_id=own.request_id, prompt_token_ids=own.prompt_token_ids, params=own.params)
            )
        try:
            while self.engine.has_work:
                for delta in self.engine.step():
                    job = by_id.get(delta.request_id)  # None: left over from a call that was interrupted
                    if job is not None and job.progress.add(delta):
                        self.engine.abort_children([(delta.request_id, delta.index)])
        except BaseException:
            self.engine.abort(by_id)
            raise
        return [job.output() for job in jobs]


class _Job:
    """One request while `LLM` runs it."""

    def __init__(
        self,
        request_id: int,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Any,
        *,
        refusal: str | None = None,
    ) -> None:
        """With a refusal it has ended, and the engine is never asked."""
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self._tokenizer = tokenizer
        wants_text = params.detokenize and bool(prompt_token_ids)
        self.progress = RequestProgress(tokenizer if wants_text else None, prompt_token_ids, params)
        if refusal is not None:
            for index in range(params.n):
                self.progress.add(
                    TokenDelta(request_id=request_id, index=index, finish_reason=FinishReason.ERROR, error=refusal)
                )

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[self._completion(index, child) for index, child in enumerate(self.progress.children)],
            prompt_logprobs=self._named_prompt(),
            num_cached_tokens=self.progress.num_cached_tokens,
        )

    def _completion(self, index: int, child: ChildOutput) -> CompletionOutput:
        pairs = zip(child.token_ids, child.logprobs, strict=False)
        logprobs = [_named(token, entry, self._tokenizer) for token, entry in pairs]
        return CompletionOutput(
            index=index,
            text=child.text(),
            token_ids=child.token_ids,
            cumulative_logprob=sum(entry.logprob for entry in child.logprobs) if child.logprobs else None,
            logprobs=logprobs or None,
            finish_reason=child.finish_reason,
            stop_reason=child.stop_reason,
            error=child.error,
        )

    def _named_prompt(self) -> list[dict[int, Logprob] | None] | None:
        if self.progress.prompt_logprobs is None:
            return None
        pairs = zip(self.prompt_token_ids[1:], self.progress.prompt_logprobs, strict=True)
        return [None, *(_named(token, entry, self._tokenizer) for token, entry in pairs)]


def _named(token_id: int, entry: TokenLogprobs, tokenizer: Any) -> dict[int, Logprob]:
    ranked = enumerate(zip(entry.top_token_ids, entry.top_logprobs, strict=True), start=1)
    named = {token: _logprob(token, value, rank=rank, tokenizer=tokenizer) for rank, (token, value) in ranked}
    named.setdefault(token_id, _logprob(token_id, entry.logprob, rank=entry.rank, tokenizer=tokenizer))
    return named


def _logprob(token_id: int, value: float, *, rank: int, tokenizer: Any) -> Logprob:
    decoded = None if tokenizer is None else text_of_token(tokenizer, token_id)
    return Logprob(logprob=value, rank=rank, decoded_token=decoded)


def _check_text(text: str) -> None:
    """Raise InvalidRequestError for a text that no tokenizer reads: half of a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The prompt has {text[error.start]!r} at character {error.start}, half of a surrogate pair; text must be "
            "whole characters. Remove or replace it, or read its file as UTF-8."
        ) from error


def _prompt_of(item: Any) -> Any:
    """Return what is given as text or token ids, itself or in a dict; a dict without either as it is."""
    if not isinstance(item, dict):
        return item
    return item["prompt_token_ids"] if "prompt_token_ids" in item else item.get("prompt", item)


def _whole_numbers(given: Any) -> list[Any]:
    """Return the items of a sequence, those that are whole numbers as `int`, whatever their type; True is none.

    Raises InvalidRequestError for what is no sequence.
    """
    if isinstance(given, dict):
        raise InvalidRequestError("The prompt is a dict without prompt and prompt_token_ids; give one of them.")
    if isinstance(given, bytes | bytearray) or not isinstance(given, Iterable):
        raise InvalidRequestError(
            f"The prompt is {reprlib.repr(given)}; give text, token ids, or a dict with prompt or prompt_token_ids."
        )
    return [int(one) if isinstance(one, Integral) and not isinstance(one, bool) else one for one in given]


def _as_list(prompts: Any) -> list[Any]:
    if isinstance(prompts, str | bytes | dict) or not isinstance(prompts, Iterable):
        return [prompts]
    items = list(prompts)
    return [items] if items and isinstance(items[0], Number) else items


def _params_for(items: list[Any], given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * len(items)
    if len(given) != len(items):
        raise InvalidRequestError(f"{len(given)} sampling_params for {len(items)} prompts; give one, or one for each.")
    return list(given)
