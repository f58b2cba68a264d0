"""`LLM`: text or token ids in, finished results out, in order; an engine in this process with a tokenizer.

The names are those of vLLM's `LLM`. A service uses `engine.process.parent` instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.build import build_engine
from engine.chat_prompts import ChatOptions, ChatPrompts
from engine.child_output import ChildOutput, RequestProgress
from engine.config import EngineConfig
from engine.detokenizer import text_of_token
from engine.errors import EngineBroken, EngineForked, InvalidParamsError, InvalidRequestError
from engine.interrupts import HeldInterrupts, held_interrupts
from engine.loop.intake import check_prompt_token_ids, kept_end
from engine.models.paths import resolve_model_path
from engine.outputs import CompletionOutput, FinishReason, Logprob, RequestOutput, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from engine.prompts import Prompt, conversations_of, is_text, params_of, prompts_of, read_prompt
from engine.scheduling.request import NewRequest
from engine.stats import EngineStats
from engine.text import with_bad_words_as_tokens
from engine.tokenizer import load_tokenizer
from engine.vllm_settings import check_quantization, engine_settings

Adapters = str | Path | Sequence[str | Path | None] | None
"""The folder of an adapter for all prompts, or of each prompt's."""


class LLM:
    """Load a model and generate. Keyword arguments are those of EngineConfig.

    Of vLLM's, `gpu_memory_utilization` is `gpu_memory_share`; `tensor_parallel_size` must be 1, and `quantization` the
    method of the model's files.

    Calls from several threads run one after the other. Ctrl-C ends a call between two steps; later calls work as
    before. A second Ctrl-C ends it at once. If that or an error interrupts a step half done, this call raises it and
    every later call raises EngineBroken: make a new LLM.

    Without a tokenizer in the model's files, prompts must be token ids and `text` is empty.
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        self._pid = os.getpid()
        path = resolve_model_path(str(model))
        config = EngineConfig(model=str(path), **engine_settings(settings))
        check_quantization(settings.get("quantization"), config)
        self.engine = build_engine(config)
        self.tokenizer = load_tokenizer(path)
        self._next_request_id = 0
        self._lock = threading.Lock()
        self._broken_by: str | None = None

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: Adapters = None,
    ) -> list[RequestOutput]:
        """Generate for every prompt and return the results in order.

        `adapter` is the folder of a LoRA adapter, or a list with one or None for each prompt.

        A request that can never run, or whose prompt is invalid, gets an output with finish_reason "error" and its
        reason in `error`; the others finish. Raises InvalidRequestError for text without a tokenizer, or parameters
        that are invalid or do not match in number, EngineBroken after a call that was interrupted in the middle of a
        step, and EngineForked in a fork of the process that made this LLM.
        """
        return self._generate(prompts_of(prompts), sampling_params, adapter)

    def chat(
        self,
        messages: Sequence[dict[str, Any]] | Sequence[Sequence[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        adapter: Adapters = None,
    ) -> list[RequestOutput]:
        """Format each conversation with a chat template, by default the model's, and generate the answers, in order.

        With `continue_final_message`, and without `add_generation_prompt`, the answer continues the last message.
        `tools` are functions in OpenAI's form; calls are part of the answer's text. `adapter` is that of `generate`. A
        conversation that the template refuses, or whose tools it leaves out, gets an error of its own, like an invalid
        prompt of `generate`. Raises InvalidRequestError for options of the wrong kind, if there is no template, if it
        does not compile, or without jinja2.
        """
        self._require_no_fork()
        options = ChatOptions(
            tools=tools,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        prompts = ChatPrompts(self.tokenizer, options)
        return self._generate([prompts.ids_of(one) for one in conversations_of(messages)], sampling_params, adapter)

    def stats(self) -> EngineStats:
        """Return the engine's counters."""
        return self.engine.stats()

    def _require_no_fork(self) -> None:
        if os.getpid() != self._pid:
            raise EngineForked(self._pid)

    def _generate(self, items: list[Any], sampling_params: Any, adapter: Adapters) -> list[RequestOutput]:
        self._require_no_fork()
        params = params_of(sampling_params, num_prompts=len(items))
        adapters = _adapters_of(adapter, num_prompts=len(items))
        if self.tokenizer is None and (any(map(is_text, items)) or any(one.stop or one.bad_words for one in params)):
            raise InvalidRequestError(
                "This model's directory has no tokenizer; give prompts as token ids, and no stop strings or bad words."
            )
        with self._lock:
            if self._broken_by is not None:
                raise EngineBroken(self._broken_by)
            jobs = zip(items, params, adapters, strict=True)
            return self._run([self._job(item, own, adapter) for item, own, adapter in jobs])

    def _job(self, item: Any, params: SamplingParams, adapter: str | None) -> _Job:
        self._next_request_id += 1
        text, token_ids, refusal = None, [], None
        try:
            prompt = read_prompt(item)
            text = prompt if isinstance(prompt, str) else None
            params = with_bad_words_as_tokens(params, self.tokenizer)
            token_ids = kept_end(self._token_ids(prompt), params, self.engine.info)
            params = replace(params, truncate_prompt_tokens=None) if params.truncate_prompt_tokens else params
        except (InvalidParamsError, InvalidRequestError) as error:
            refusal = str(error)
        return _Job(self._next_request_id, text, token_ids, params, self.tokenizer, adapter=adapter, refusal=refusal)

    def _token_ids(self, prompt: str | list[Any]) -> list[int]:
        """Return the tokens of a prompt. Raises InvalidRequestError for ids outside the model's vocabulary."""
        if isinstance(prompt, str):
            token_ids: list[int] = self.tokenizer(prompt)["input_ids"]
            return token_ids
        check_prompt_token_ids(prompt, vocab_size=self.engine.info.vocab_size)
        return prompt

    def _run(self, jobs: list[_Job]) -> list[RequestOutput]:
        by_id = {job.request_id: job for job in jobs if not job.progress.has_ended}
        with held_interrupts() as interrupts:
            try:
                for job in by_id.values():
                    self.engine.add(job.request())
                    interrupts.let_through()
                while self.engine.has_work:
                    self._step(by_id)
                    interrupts.let_through()
            except BaseException as error:
                self._end(by_id, error, interrupts)
                raise
        return [job.output() for job in jobs]

    def _end(self, request_ids: Iterable[int], error: BaseException, interrupts: HeldInterrupts) -> None:
        """Abort the requests of a failed call. The next one may run only if the engine's state is then consistent."""
        self._broken_by = f"{type(error).__name__}: {error}".removesuffix(": ")
        if interrupts.has_cut:
            return
        with suppress(BaseException):  # the first error is the one to report
            self.engine.abort(request_ids)
            self.engine.scheduler.check_integrity()
            self._broken_by = None

    def _step(self, by_id: Mapping[int, _Job]) -> None:
        for delta in self.engine.step():
            job = by_id.get(delta.request_id)  # None: left over from a call that was interrupted
            if job is not None and job.progress.add(delta):
                self.engine.abort_children([(delta.request_id, delta.index)])


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
        adapter: str | None,
        refusal: str | None = None,
    ) -> None:
        """A refused job has ended; it never enters the engine."""
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self._tokenizer = tokenizer
        self._adapter = adapter
        wants_text = params.detokenize and bool(prompt_token_ids)
        self.progress = RequestProgress(tokenizer if wants_text else None, prompt_token_ids, params)
        if refusal is not None:
            for index in range(params.n):
                self.progress.add(
                    TokenDelta(request_id=request_id, index=index, finish_reason=FinishReason.ERROR, error=refusal)
                )

    def request(self) -> NewRequest:
        return NewRequest(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            params=self.params,
            adapter=self._adapter,
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


def _adapters_of(adapter: Adapters, *, num_prompts: int) -> list[str | None]:
    if adapter is None or isinstance(adapter, str | Path):
        return [None if adapter is None else str(adapter)] * num_prompts
    if len(adapter) != num_prompts:
        raise InvalidRequestError(
            f"There are {len(adapter)} adapters and {num_prompts} prompts; give one folder, or for each prompt one or "
            "None."
        )
    return [None if each is None else str(each) for each in adapter]


def _named(token_id: int, entry: TokenLogprobs, tokenizer: Any) -> dict[int, Logprob]:
    ranked = enumerate(zip(entry.top_token_ids, entry.top_logprobs, strict=True), start=1)
    named = {token: _logprob(token, value, rank=rank, tokenizer=tokenizer) for rank, (token, value) in ranked}
    named.setdefault(token_id, _logprob(token_id, entry.logprob, rank=entry.rank, tokenizer=tokenizer))
    return named


def _logprob(token_id: int, value: float, *, rank: int, tokenizer: Any) -> Logprob:
    decoded = None if tokenizer is None else text_of_token(tokenizer, token_id)
    return Logprob(logprob=value, rank=rank, decoded_token=decoded)
