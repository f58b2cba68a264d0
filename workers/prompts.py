"""Turns the body of a line into prompts of token ids and sampling parameters."""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Protocol, TypeGuard

from engine.params import SamplingParams
from engine.structured import StructuredOutput
from engine.text import with_bad_words_as_tokens
from engine.thoughts import Thoughts
from jobs.lines.bodies import CHAT_ENDPOINT, ChatRequest, CompletionRequest, parse_body
from jobs.lines.body_checks import MAX_ECHO_BYTES, MAX_SCORES, BodyError
from jobs.lines.body_tools import ToolUse
from jobs.lines.reading import InputLine
from jobs.lines.sampling import Sampling
from workers.chat_template import ChatTemplate, TemplatedTokenizer, for_template
from workers.prompt_lengths import PromptLengths
from workers.special_tokens import Check
from workers.structure import Asker, check_structure, structured_output
from workers.text_encoder import TextEncoder
from workers.tool_calls.output import CallReader
from workers.tool_calls.writing import constraint

Request = ChatRequest | CompletionRequest
_ENGINE_DEFAULTS = {parameter.name: parameter.default for parameter in fields(SamplingParams)}
_SAMPLING = [
    (one.name, one.default if one.default == _ENGINE_DEFAULTS[one.name] else MISSING) for one in fields(Sampling)
]
"""The parameters of a line, each with the default that need not be passed on."""


class Tokenizer(TemplatedTokenizer, Protocol):
    """The methods of a transformers tokenizer that we use; safe to call from several threads."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLine:
    """A line ready for the engine."""

    line_no: int
    custom_id: str
    endpoint: str
    prompts: tuple[array[int], ...]
    """Each runs `params.n` times. Arrays take four bytes a token, a ninth of a list: a worker holds many long ones."""
    params: SamplingParams
    echoes: tuple[str, ...] | None = None
    """The text that the answers begin with, for each prompt; None without echo."""
    num_prompt_logprobs: int | None = None
    """The line's own value; `params.prompt_logprobs` is higher if an echo needs more."""
    calls: CallReader | None = None
    """Finds the tool calls in an output."""
    seeds: tuple[int, ...] | None = None
    """One per prompt; None if the line sets one for all."""
    max_model_len: int
    """The model's context: prompt and answer together."""
    context: Mapping[str, Any] | None = None
    """The passages in the prompt, in the form that the answer reports."""

    def params_of(self, prompt_index: int) -> SamplingParams:
        """Return the sampling parameters of one prompt: `params` (which have the first prompt's seed) with its seed."""
        if self.seeds is None or prompt_index == 0:
            return self.params
        return replace(self.params, seed=self.seeds[prompt_index])

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def most_tokens(self) -> int:
        """Return the most tokens it may be billed for: its prompts once, and each of their n answers."""
        return self.num_prompt_tokens + self.most_output_tokens

    @property
    def most_output_tokens(self) -> int:
        """Return the most tokens of its answers."""
        return self.params.n * sum(map(self._most_output_tokens, self.prompts))

    @property
    def num_prompt_scores(self) -> int:
        """Return how many log-probabilities of its prompts the answer shows, repetitions included."""
        count = self.params.prompt_logprobs
        if count is None:
            return 0
        is_shown_twice = self.echoes is not None and None not in (self.params.logprobs, self.num_prompt_logprobs)
        copies = 1 if self.endpoint == CHAT_ENDPOINT else self.params.n * (2 if is_shown_twice else 1)
        return self.num_prompt_tokens * (count + 1) * copies

    def _most_output_tokens(self, prompt: Sequence[int]) -> int:
        max_tokens = self.params.max_tokens
        return self.max_model_len - len(prompt) if max_tokens is None else max_tokens


@dataclass(frozen=True, slots=True)
class _Thinking:
    """What the answers to a request may think."""

    thoughts: Thoughts | None = None
    forbidden_token_ids: tuple[int, ...] = ()
    """Tokens that would begin thoughts where there shall be none."""


class PromptMaker:
    """Applies one model's tokenizer, chat template and limits: `max_model_len` tokens, ids below `vocab_size`."""

    def __init__(
        self, tokenizer: Tokenizer, *, max_model_len: int, vocab_size: int, defaults: Mapping[str, Any] | None = None
    ) -> None:
        """`defaults` are values of sampling parameters for lines that do not set them."""
        self._tokenizer = tokenizer
        self._defaults = defaults or {}
        self._encoder = TextEncoder(tokenizer)
        self._template = ChatTemplate(tokenizer)
        self._lengths = PromptLengths(tokenizer, max_model_len=max_model_len)
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len

    def prepare(
        self,
        line: InputLine,
        *,
        endpoint: str,
        batch_id: str,
        tenant: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
        room: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> PreparedLine:
        """Return the prompts and parameters of a line. Raise BodyError naming what is wrong, unsupported or too long.

        `room` is held while its texts are tokenised, but not while its grammar waits for its tenant's turn.
        Raise Unwanted once `is_wanted` returns False.
        """
        request = parse_body(endpoint, line.body)
        asker = Asker(tenant=tenant, is_wanted=is_wanted)
        calls = self._call_reader(request)
        prompts, thinking = self._checked_prompts(request, is_wanted, room)
        seeds = None
        if request.sampling.seed is None:
            # Derived, so that a line run again after a crash gives the same tokens.
            seeds = tuple(derived_seed(batch_id, line.line_no, index) for index in range(len(prompts)))
        prepared = PreparedLine(
            line_no=line.line_no,
            custom_id=line.custom_id,
            endpoint=endpoint,
            prompts=prompts,
            params=self._params(
                request,
                calls,
                asker,
                thinking=thinking,
                seed=request.sampling.seed if seeds is None else seeds[0],
            ),
            echoes=self._echoes(request),
            num_prompt_logprobs=request.sampling.prompt_logprobs,
            calls=calls,
            seeds=seeds,
            max_model_len=self._max_model_len,
            context=line.context,
        )
        _check_prompt_scores(prepared)
        _check_echoes(prepared)
        return _ending_with_its_scores(prepared)

    def measure(
        self,
        line: InputLine,
        *,
        endpoint: str,
        default_max_tokens: int,
        is_wanted: Callable[[], bool],
        room: Callable[[], AbstractContextManager[None]],
    ) -> tuple[int, int]:
        """Return the tokens of a line's prompts and the most tokens of its answers.

        An answer has its `max_tokens`, or `default_max_tokens` without one, limited by the context and by its
        log-probabilities. Passages to be retrieved count with their limit. Raise what `prepare` raises, except for a
        grammar that cannot be enforced: none is compiled.
        """
        request = parse_body(endpoint, line.body)
        self._call_reader(request)
        prompts, _ = self._checked_prompts(request, is_wanted, room)
        sampling = request.sampling
        most = default_max_tokens if sampling.max_tokens is None else sampling.max_tokens
        if sampling.logprobs is not None:
            most = min(most, _most_shown_tokens(len(prompts) * sampling.n, sampling.logprobs))
        answers = sum(min(most, self._max_model_len - len(prompt)) for prompt in prompts)
        context = request.context if isinstance(request, ChatRequest) else None
        passages = 0 if context is None else context.most_tokens
        return sum(map(len, prompts)) + passages, sampling.n * answers

    def may_think(self, line: InputLine, *, endpoint: str) -> bool:
        """Tell whether the answers to a line may have thoughts. Raise what `measure` raises."""
        request = parse_body(endpoint, line.body)
        return self._checked_prompts(request, lambda: True, nullcontext)[1].thoughts is not None

    def _checked_prompts(
        self, request: Request, is_wanted: Callable[[], bool], room: Callable[[], AbstractContextManager[None]]
    ) -> tuple[tuple[array[int], ...], _Thinking]:
        """Return prompts that fit into the context together with their answers, and the answers' thoughts.

        Raise BodyError or Unwanted.
        """
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        check: Check = functools.partial(self._lengths.check_text, param=param, is_wanted=is_wanted)
        if request.truncation is not None:
            check = functools.partial(self._lengths.check_truncated_text, is_wanted=is_wanted)
        self._check_token_ids(request)
        with room():
            prompts, thinking = self._prompts(request, check)
        prompts = self._truncated(request, prompts)
        self._lengths.check(prompts, request.sampling.max_tokens, param=param)
        return prompts, thinking

    def _truncated(self, request: Request, prompts: tuple[array[int], ...]) -> tuple[array[int], ...]:
        """Return the last tokens of each prompt, as many as the request keeps."""
        if request.truncation is None:
            return prompts
        num_tokens = request.truncation
        if num_tokens == -1:
            num_tokens = max(1, self._max_model_len - (request.sampling.max_tokens or 1))
        return tuple(prompt[-num_tokens:] for prompt in prompts)

    def _call_reader(self, request: Request) -> CallReader | None:
        """Return the reader of the answer's tool calls. Raise BodyError if the chat template has no tools."""
        tool_use = _tool_use(request)
        if tool_use is None:
            return None
        form = self._template.call_form(for_template(tool_use.offered))
        if form is None:
            message = "this model's chat template has no tools, or a form of calls that is not supported; remove tools"
            raise BodyError("tools", message, code="unsupported_parameter")
        return CallReader.of(form, tool_use)

    def _prompts(self, request: Request, check: Check) -> tuple[tuple[array[int], ...], _Thinking]:
        if isinstance(request, ChatRequest):
            tools = None if request.tool_use is None else for_template(request.tool_use.offered)
            prompt = self._template.prompt(request.messages, tools, use=request.template, check=check)
            return (_packed(prompt.token_ids),), _Thinking(prompt.thoughts, prompt.forbidden_token_ids)
        is_truncated = request.truncation is not None
        return tuple(self._encoded(prompt, check, is_truncated) for prompt in request.prompts), _Thinking()

    def _encoded(self, prompt: str | Sequence[int], check: Check, is_truncated: bool) -> array[int]:
        """Return the tokens of a whole prompt of the caller; special tokens in it count as special tokens."""
        if not isinstance(prompt, str):
            return _packed(prompt)
        check(prompt)
        token_ids = _packed(self._encoder.encode(prompt))
        if not is_truncated:
            self._lengths.check([token_ids], None, param="prompt")  # before the next one is encoded
        return token_ids

    def _echoes(self, request: Request) -> tuple[str, ...] | None:
        """Return each prompt as text, token ids decoded, if the answers begin with it."""
        if not _is_echoed(request):
            return None
        skip = request.sampling.skip_special_tokens
        return tuple(
            prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, skip_special_tokens=skip)
            for prompt in request.prompts
        )

    def _params(
        self, request: Request, calls: CallReader | None, asker: Asker, *, thinking: _Thinking, seed: int | None
    ) -> SamplingParams:
        sampling = request.sampling
        arguments = {name: value for name, default in _SAMPLING if (value := getattr(sampling, name)) is not default}
        arguments |= {name: value for name, value in self._defaults.items() if name not in request.given}
        values: dict[str, Any] = arguments | {
            "seed": seed,
            "logit_bias": dict(sampling.logit_bias),
            "structured": self._structured(request, calls, asker),
            "thoughts": thinking.thoughts,
        }
        if request.structure is None:  # a structure has no room for them, and is slower with bad words
            values["bad_words_token_ids"] = [[token_id] for token_id in thinking.forbidden_token_ids]
        if _is_echoed(request) and sampling.logprobs is not None:
            values["prompt_logprobs"] = max(sampling.logprobs, sampling.prompt_logprobs or 0)
        return with_bad_words_as_tokens(SamplingParams(**values), self._tokenizer)

    def _structured(self, request: Request, calls: CallReader | None, asker: Asker) -> StructuredOutput | None:
        """Return the structure to enforce: that of tool calls if the line has tools, else the one it asks for."""
        structure = None if request.structure is None else structured_output(request.structure, asker)
        tool_use = _tool_use(request)
        if calls is None or tool_use is None:
            return structure
        special_ids = {token.content: token_id for token_id, token in self._tokenizer.added_tokens_decoder.items()}
        grammar = constraint(calls.form, tool_use, special_ids)
        if grammar is not None:
            check_structure(grammar, asker, param="tools")
        return grammar

    def _check_token_ids(self, request: Request) -> None:
        sampling = request.sampling
        ids: dict[str, Iterable[int]] = {
            "stop_token_ids": sampling.stop_token_ids,
            "allowed_token_ids": sampling.allowed_token_ids or (),
            "logit_bias": (token_id for token_id, _ in sampling.logit_bias),
        }
        if isinstance(request, CompletionRequest):
            ids["prompt"] = (token for prompt in request.prompts if not isinstance(prompt, str) for token in prompt)
        for name, token_ids in ids.items():
            largest = max(token_ids, default=0)
            if largest >= self._vocab_size:
                message = f"{name} has token id {largest}; the ids of this model run from 0 to {self._vocab_size - 1}"
                raise BodyError(name, message)


def _tool_use(request: Request) -> ToolUse | None:
    return request.tool_use if isinstance(request, ChatRequest) else None


def _is_echoed(request: Request) -> TypeGuard[CompletionRequest]:
    return isinstance(request, CompletionRequest) and request.echo


def _check_prompt_scores(prepared: PreparedLine) -> None:
    if prepared.num_prompt_scores <= MAX_SCORES:
        return
    param = "logprobs" if prepared.num_prompt_logprobs is None else "prompt_logprobs"
    message = (
        f"the answer would show {prepared.num_prompt_scores:,} log-probabilities of {prepared.num_prompt_tokens:,} "
        f"prompt tokens; at most {MAX_SCORES:,} are shown in one line. Lower {param}, ask for one answer "
        "a prompt, or share the prompts among more lines"
    )
    raise BodyError(param, message)


def _check_echoes(prepared: PreparedLine) -> None:
    num_bytes = prepared.params.n * sum(len(echo.encode()) for echo in prepared.echoes or ())
    if num_bytes > MAX_ECHO_BYTES:
        message = (
            f"the answer would repeat {num_bytes:,} bytes of prompts; at most {MAX_ECHO_BYTES:,} are repeated in one "
            "line. Lower n, or share the prompts among more lines"
        )
        raise BodyError("echo", message)


def _ending_with_its_scores(prepared: PreparedLine) -> PreparedLine:
    """Limit the outputs, in equal shares, to the log-probabilities that the answer to one line may show."""
    params = prepared.params
    if params.logprobs is None:
        return prepared
    num_outputs = len(prepared.prompts) * params.n
    max_tokens = _most_shown_tokens(num_outputs, params.logprobs)
    if prepared.most_output_tokens <= max_tokens * num_outputs:
        return prepared
    min_tokens = min(params.min_tokens, max_tokens)
    return replace(prepared, params=replace(params, max_tokens=max_tokens, min_tokens=min_tokens))


def _most_shown_tokens(num_outputs: int, logprobs: int) -> int:
    """Return how many tokens each output may have with this many log-probabilities; at least one for any valid line."""
    return MAX_SCORES // (num_outputs * (logprobs + 1))


def _packed(token_ids: Sequence[int]) -> array[int]:
    return array("i", token_ids)


def derived_seed(batch_id: str, line_no: int, prompt_index: int) -> int:
    """Return the seed of a prompt whose line gives none: the same whenever the line is run again."""
    origin = f"{batch_id}:{line_no}" + (f":{prompt_index}" if prompt_index else "")
    digest = hashlib.blake2b(origin.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # 63 bits: the range of SamplingParams.seed
