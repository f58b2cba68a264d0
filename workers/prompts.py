"""From the body of a line to prompts of token ids and sampling parameters. Knows no engine process and no SQL."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from jinja2 import TemplateError

from engine.params import SamplingParams
from jobs.bodies import ChatRequest, CompletionRequest, parse_body
from jobs.body_checks import BodyError
from jobs.lines import InputLine


class Tokenizer(Protocol):
    """What we use of a transformers tokenizer; safe to call from several threads."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...
    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLine:
    """A line ready for the engine: every prompt runs `params.n` times."""

    line: InputLine
    endpoint: str
    prompts: tuple[list[int], ...]
    params: SamplingParams

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


class PromptMaker:
    """Applies one model's tokenizer, chat template and context limit (`max_model_len` tokens)."""

    def __init__(self, tokenizer: Tokenizer, *, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def prepare(self, line: InputLine, *, endpoint: str, batch_id: str) -> PreparedLine:
        """Raises BodyError naming the parameter that is wrong, unsupported or too long."""
        request = parse_body(endpoint, line.body)
        prompts = self._prompts(request)
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        for prompt in prompts:
            self._check_length(len(prompt), request.sampling.max_tokens, param=param)
        values = asdict(request.sampling)
        if values["seed"] is None:
            # Derived, so that a line run again after a crash gives the same tokens.
            values["seed"] = _seed(batch_id, line.line_no)
        return PreparedLine(line=line, endpoint=endpoint, prompts=prompts, params=SamplingParams(**values))

    def _prompts(self, request: ChatRequest | CompletionRequest) -> tuple[list[int], ...]:
        if isinstance(request, ChatRequest):
            return (self._chat_prompt(request),)
        return tuple(
            self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in request.prompts
        )

    def _chat_prompt(self, request: ChatRequest) -> list[int]:
        """Apply the chat template; it writes the special tokens itself, so none are added (no double BOS)."""
        try:
            encoded = self._tokenizer.apply_chat_template(
                list(request.messages), tokenize=True, add_generation_prompt=True, return_dict=True
            )
        except (TemplateError, ValueError) as error:
            message = f"the model's chat template refused the messages: {error}"
            raise BodyError("messages", message) from None
        return list(encoded["input_ids"])

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


def _seed(batch_id: str, line_no: int) -> int:
    digest = hashlib.blake2b(f"{batch_id}:{line_no}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # 63 bits: the range of SamplingParams.seed
