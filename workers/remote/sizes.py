"""How many tokens a line has: exactly with the model's tokenizer, otherwise at most, from its bytes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import orjson

from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.body_checks import BodyError
from jobs.lines.embedding_bodies import EmbeddingRequest
from jobs.lines.rerank_bodies import RerankRequest
from workers.chat_template import ChatPrompt, ChatTemplate, for_template
from workers.prompt_lengths import PromptLengths, Unwanted
from workers.text_encoder import TextEncoder

TEMPLATE_TOKENS = 512
"""What a chat template may add to a conversation: a system prompt of its own, the description of tools. Qwen3 adds 25
and with tools 160, gpt-oss 75 (their templates, November 2026)."""

SPECIAL_TOKENS = 8
"""What a tokenizer may add around a text."""

Request = ChatRequest | CompletionRequest | EmbeddingRequest | RerankRequest

Room = Callable[[], AbstractContextManager[None]]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Tokens of a line."""

    num_prompt_tokens: int
    """Of all its prompts: exact, or a bound. Its tenant is billed for no more."""
    most_output_tokens: int
    most_paid_tokens: int | None = None
    """Of all its prompts that a server outside the house may read, and be paid for; None: `num_prompt_tokens`."""
    prompts: tuple[array[int], ...] | None = None
    """None without a tokenizer."""
    has_thoughts: bool = False
    """Whether its answer may begin with thoughts, as far as a chat template tells."""
    is_forged: Callable[[], bool] = _never
    """Whether a server that reads its messages as text takes special tokens in them for those of the template."""

    @property
    def is_exact(self) -> bool:
        return self.prompts is not None

    @property
    def most_read_tokens(self) -> int:
        """Return the most tokens of its prompts that its server may count."""
        return self.num_prompt_tokens if self.most_paid_tokens is None else self.most_paid_tokens


class Sizes(Protocol):
    def of(self, request: Request, *, is_wanted: Callable[[], bool], room: Room) -> Size:
        """Return a line's size. Raise BodyError if it is too long for the context, Unwanted once it is not wanted."""

    def count(self, text: str) -> int | None:
        """Return the tokens of an answer's text; None where nobody here can count them."""


class ByteSizes:
    """Upper bounds: a token has at least one byte, and no prompt that is longer than the context is answered.

    A server outside the house may read a longer prompt all the same, and is to be paid for it: there the bytes count
    whole, but for its payment alone. Each of its answers has a limit, which leaves room for the prompt.
    """

    def __init__(self, *, max_model_len: int, is_outside: bool = False) -> None:
        self._max_model_len = max_model_len
        self._is_outside = is_outside

    def of(self, request: Request, *, is_wanted: Callable[[], bool], room: Room) -> Size:
        if not is_wanted():
            raise Unwanted
        bounds = _bounds(request)
        return Size(
            num_prompt_tokens=sum(min(bound, self._max_model_len) for bound in bounds),
            most_output_tokens=self._most_output(request, bounds),
            most_paid_tokens=sum(bounds) if self._is_outside else None,
        )

    def _most_output(self, request: Request, bounds: Sequence[int]) -> int:
        if isinstance(request, EmbeddingRequest | RerankRequest):
            return 0
        max_tokens = request.sampling.max_tokens
        most = self._rest(max(bounds)) if max_tokens is None else max_tokens
        return request.sampling.n * len(bounds) * most

    def _rest(self, bound: int) -> int:
        """Return the most tokens of an answer without `max_tokens` to a prompt of so many bytes, which has a quarter as
        many tokens as a rule."""
        if not self._is_outside:
            return self._max_model_len
        return max(self._max_model_len - bound, self._max_model_len // 4, 1)

    def count(self, text: str) -> int | None:
        return None


def _bounds(request: Request) -> list[int]:
    if isinstance(request, ChatRequest):
        tools = [] if request.tool_use is None else [dict(tool) for tool in request.tool_use.offered]
        conversation = [dict(message) for message in request.messages]
        return [len(orjson.dumps([conversation, tools])) + TEMPLATE_TOKENS]
    if isinstance(request, RerankRequest):
        query = len(request.query.encode()) + SPECIAL_TOKENS
        return [query + len(document.encode()) for document in request.documents]
    prompts = request.inputs if isinstance(request, EmbeddingRequest) else request.prompts
    return [len(prompt.encode()) + SPECIAL_TOKENS if isinstance(prompt, str) else len(prompt) for prompt in prompts]


class TokenSizes:
    """Exact sizes, by the model's tokenizer and chat template."""

    def __init__(self, tokenizer: Any, *, max_model_len: int, is_outside: bool = False) -> None:
        self._encoder = TextEncoder(tokenizer)
        self._template = ChatTemplate(tokenizer)
        self._lengths = PromptLengths(tokenizer, max_model_len=max_model_len)
        self._max_model_len = max_model_len
        self._bounds = ByteSizes(max_model_len=max_model_len, is_outside=is_outside)

    def of(self, request: Request, *, is_wanted: Callable[[], bool], room: Room) -> Size:
        if isinstance(request, RerankRequest):  # how a model joins a query and a document stands in no tokenizer
            return self._bounds.of(request, is_wanted=is_wanted, room=room)
        if isinstance(request, EmbeddingRequest):
            return self._of_inputs(request, is_wanted=is_wanted, room=room)
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        check = partial(self._lengths.check_text, param=param, is_wanted=is_wanted)
        chat: ChatPrompt | None = None
        with room():
            if isinstance(request, ChatRequest):
                chat = self._chat_prompt(request, check)
                prompts: tuple[array[int], ...] = (_packed(chat.token_ids),)
            else:
                prompts = tuple(self._encoded(prompt, check) for prompt in request.prompts)
        max_tokens = request.sampling.max_tokens
        self._lengths.check(prompts, max_tokens, param=param)
        most = (self._max_model_len - len(prompt) if max_tokens is None else max_tokens for prompt in prompts)
        return Size(
            num_prompt_tokens=sum(map(len, prompts)),
            most_output_tokens=request.sampling.n * sum(most),
            prompts=prompts,
            has_thoughts=chat is not None and chat.thoughts is not None,
            is_forged=_never if chat is None else chat.is_forged,
        )

    def _of_inputs(self, request: EmbeddingRequest, *, is_wanted: Callable[[], bool], room: Room) -> Size:
        check = partial(self._lengths.check_text, param="input", is_wanted=is_wanted)
        if request.truncate:
            return self._bounds.of(request, is_wanted=is_wanted, room=room)
        with room():
            prompts = tuple(self._encoded(text, check) for text in request.inputs)
        for index, prompt in enumerate(prompts):
            if len(prompt) > self._max_model_len:
                message = f"input[{index}] has {len(prompt):,} tokens; this model reads {self._max_model_len:,} at most"
                raise BodyError("input", message, code="context_length_exceeded")
        return Size(num_prompt_tokens=sum(map(len, prompts)), most_output_tokens=0, prompts=prompts)

    def _chat_prompt(self, request: ChatRequest, check: Callable[[str], None]) -> ChatPrompt:
        tools = None if request.tool_use is None else for_template(request.tool_use.offered)
        return self._template.prompt(request.messages, tools, use=request.template, check=check)

    def _encoded(self, prompt: str | Sequence[int], check: Callable[[str], None]) -> array[int]:
        if not isinstance(prompt, str):
            return _packed(prompt)
        check(prompt)
        return _packed(self._encoder.encode(prompt))

    def count(self, text: str) -> int | None:
        return len(self._encoder.encode(text, add_special_tokens=False))


def _packed(token_ids: Sequence[int]) -> array[int]:
    return array("i", token_ids)
