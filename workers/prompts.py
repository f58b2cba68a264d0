"""From the body of a line to prompts of token ids and sampling parameters. Knows no engine process and no SQL."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from engine.params import SamplingParams
from engine.structured import StructuredOutput
from engine.text import with_bad_words_as_tokens
from jobs.bodies import ChatRequest, CompletionRequest, parse_body
from jobs.body_checks import BodyError
from jobs.body_tools import ToolUse
from jobs.lines import InputLine
from workers.call_history import (
    HISTORY_FORMS,
    KEEPING_NULLS,
    HistoryForm,
    Message,
    NoText,
    has_calls,
    has_ids,
    with_marks,
    with_short_ids,
)
from workers.structure import check_structure, structured_output
from workers.tool_calls import SHORT_ID_FORMS, CallForm, CallReader, constraint, for_template, form_of

Tools = list[dict[str, Any]] | None
"""As chat templates expect them."""


class Tokenizer(Protocol):
    """What we use of a transformers tokenizer; safe to call from several threads."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...
    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any: ...
    def get_chat_template(self, *, tools: Tools = ...) -> str: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLine:
    """A line ready for the engine: every prompt runs `params.n` times.

    `echoes` are the texts that the answers begin with, one for each prompt, None without echo. `num_prompt_logprobs` is
    what the line itself asked for; `params.prompt_logprobs` is more where an echo needs them. `calls` finds tool calls.
    `seeds` are those of each prompt, None where the line gave one for all.
    """

    line: InputLine
    endpoint: str
    prompts: tuple[list[int], ...]
    params: SamplingParams
    echoes: tuple[str, ...] | None = None
    num_prompt_logprobs: int | None = None
    calls: CallReader | None = None
    seeds: tuple[int, ...] | None = None

    def params_of(self, prompt_index: int) -> SamplingParams:
        """Return how tokens are chosen for one prompt: `params` with its own seed."""
        return self.params if self.seeds is None else replace(self.params, seed=self.seeds[prompt_index])

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


class PromptMaker:
    """Applies one model's tokenizer, chat template and limits: `max_model_len` tokens, ids below `vocab_size`."""

    def __init__(self, tokenizer: Tokenizer, *, max_model_len: int, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size

    def prepare(self, line: InputLine, *, endpoint: str, batch_id: str) -> PreparedLine:
        """Raises BodyError naming the parameter that is wrong, unsupported or too long."""
        request = parse_body(endpoint, line.body)
        tool_use = request.tool_use if isinstance(request, ChatRequest) else None
        form = None if tool_use is None else self._call_form(tool_use)
        prompts = self._prompts(request)
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        for prompt in prompts:
            self._check_length(len(prompt), request.sampling.max_tokens, param=param)
        self._check_token_ids(request)
        values = asdict(request.sampling)
        seeds = None
        if values["seed"] is None:
            # Derived, so that a line run again after a crash gives the same tokens.
            seeds = tuple(_seed(batch_id, line.line_no, index) for index in range(len(prompts)))
            values["seed"] = seeds[0]
        values["logit_bias"] = dict(request.sampling.logit_bias)
        values["structured"] = None if request.structure is None else structured_output(request.structure)
        if tool_use is not None and form is not None:
            values["structured"] = self._call_constraint(form, tool_use)
        echoed = request if isinstance(request, CompletionRequest) and request.echo else None
        if echoed is not None and request.sampling.logprobs is not None:
            values["prompt_logprobs"] = max(request.sampling.logprobs, request.sampling.prompt_logprobs or 0)
        return PreparedLine(
            line=line,
            endpoint=endpoint,
            prompts=prompts,
            params=with_bad_words_as_tokens(SamplingParams(**values), self._tokenizer),
            echoes=None if echoed is None else self._texts(echoed),
            num_prompt_logprobs=request.sampling.prompt_logprobs,
            calls=None if tool_use is None or form is None else CallReader.of(form, tool_use),
            seeds=seeds,
        )

    def _prompts(self, request: ChatRequest | CompletionRequest) -> tuple[list[int], ...]:
        if isinstance(request, ChatRequest):
            return (self._chat_prompt(request),)
        return tuple(
            self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in request.prompts
        )

    def _texts(self, request: CompletionRequest) -> tuple[str, ...]:
        """Return each prompt as text, token ids decoded."""
        skip = request.sampling.skip_special_tokens
        return tuple(
            prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, skip_special_tokens=skip)
            for prompt in request.prompts
        )

    def _check_token_ids(self, request: ChatRequest | CompletionRequest) -> None:
        sampling = request.sampling
        given: dict[str, Iterable[int]] = {
            "stop_token_ids": sampling.stop_token_ids,
            "allowed_token_ids": sampling.allowed_token_ids or (),
            "logit_bias": (token_id for token_id, _ in sampling.logit_bias),
        }
        if isinstance(request, CompletionRequest):
            given["prompt"] = (token for prompt in request.prompts if not isinstance(prompt, str) for token in prompt)
        for name, token_ids in given.items():
            largest = max(token_ids, default=0)
            if largest >= self._vocab_size:
                message = f"{name} has token id {largest}; the ids of this model run from 0 to {self._vocab_size - 1}"
                raise BodyError(name, message)

    def _chat_prompt(self, request: ChatRequest) -> list[int]:
        """Apply the chat template; it writes the special tokens itself, so none are added (no double BOS)."""
        tools = None if request.tool_use is None else for_template(request.tool_use.offered)
        messages: Sequence[Message] = request.messages
        if has_ids(messages) and self._form(tools) in SHORT_ID_FORMS:
            messages = with_short_ids(messages)
        if has_calls(messages):
            return self._with_past_calls(messages, tools)
        try:
            return self._encoded(messages, tools)
        except Exception as error:  # noqa: BLE001 - a template is its author's program and may raise anything
            message = f"the model's chat template refused the messages: {_named(error)}"
            raise BodyError("messages", message) from None

    def _with_past_calls(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """Return the conversation in the first form in which the template shows all its calls."""
        marked, marks = with_marks(messages)
        refusals = []
        for form in HISTORY_FORMS:
            try:
                shown = self._apply(form.told(marked), tools, form=form, tokenize=False)
                if all(mark in shown for mark in marks):
                    return self._encoded(form.told(messages), tools, form=form)
            except Exception as error:  # noqa: BLE001 - as above; another form may suit it
                refusals.append(_named(error))
        reason = refusals[0] if len(refusals) == len(HISTORY_FORMS) else "it leaves them out"
        raise BodyError("messages", f"the model's chat template cannot show past tool calls: {reason}")

    def _encoded(self, messages: Sequence[Message], tools: Tools, *, form: HistoryForm | None = None) -> list[int]:
        return list(self._apply(messages, tools, form=form, tokenize=True, return_dict=True)["input_ids"])

    def _apply(self, messages: Sequence[Message], tools: Tools, *, form: HistoryForm | None, **how: Any) -> Any:
        """Apply the chat template; raises whatever it raises."""
        if form is not None and form.no_text is NoText.NULL:
            how["chat_template"] = KEEPING_NULLS + self._tokenizer.get_chat_template(tools=tools)
        return self._tokenizer.apply_chat_template(list(messages), tools=tools, add_generation_prompt=True, **how)

    def _call_form(self, tool_use: ToolUse) -> CallForm:
        """Return how this model writes calls. Raises BodyError when its chat template knows no tools."""
        form = self._form(for_template(tool_use.offered))
        if form is None:
            message = "this model's chat template knows no tools, or no form of calls known here; remove tools"
            raise BodyError("tools", message, code="unsupported_parameter")
        return form

    def _form(self, tools: Tools) -> CallForm | None:
        try:
            return form_of(self._tokenizer.get_chat_template(tools=tools))
        except ValueError:  # no template at all, or several of which none is the default
            return None

    def _call_constraint(self, form: CallForm, tool_use: ToolUse) -> StructuredOutput | None:
        special_ids = {token.content: token_id for token_id, token in self._tokenizer.added_tokens_decoder.items()}
        grammar = constraint(form, tool_use, special_ids)
        if grammar is not None:
            check_structure(grammar, param="tools")
        return grammar

    def _check_length(self, num_prompt_tokens: int, max_tokens: int | None, *, param: str) -> None:
        limit = self._max_model_len
        if num_prompt_tokens == 0:
            raise BodyError(param, f"{param} is empty; give at least one token")
        if num_prompt_tokens >= limit:
            message = (
                f"{param} has {num_prompt_tokens} tokens and this model's context is {limit}, of which at least one "
                "is for the answer. Shorten it"
            )
            raise BodyError(param, message, code="context_length_exceeded")
        if max_tokens is not None and num_prompt_tokens + max_tokens > limit:
            message = (
                f"max_tokens is {max_tokens} and {param} has {num_prompt_tokens} tokens; together they may be at most "
                f"{limit}, this model's context. Lower max_tokens to {limit - num_prompt_tokens} or shorten {param}"
            )
            raise BodyError("max_tokens", message, code="context_length_exceeded")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _seed(batch_id: str, line_no: int, prompt_index: int) -> int:
    place = f"{batch_id}:{line_no}" + (f":{prompt_index}" if prompt_index else "")
    digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # 63 bits: the range of SamplingParams.seed
