"""Validation of a request against a loaded engine, before it is queued."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InvalidRequestError
from engine.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Limits and properties of a loaded engine."""

    num_kv_blocks: int
    """Blocks that requests can use."""
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str
    products: str | None = None
    """What multiplies the model's weights, if it was chosen (kernels/choice); a row's bits depend on it."""

    @property
    def num_kv_tokens(self) -> int:
        """Return how many tokens the pool holds."""
        return self.num_kv_blocks * self.block_size


def resolve_max_tokens(prompt: Sequence[int], params: SamplingParams, info: EngineInfo) -> int:
    """Return how many tokens a child may generate. Raises InvalidRequestError if it can never run.

    Without max_tokens, and at the model's limit, a sequence ends with "length" when its context is full.
    """
    _check_prompt(prompt, info)
    _check_tokens(params, info)
    room = info.max_model_len - len(prompt)
    if params.max_tokens is None:
        max_tokens = min(room, info.num_kv_tokens - len(prompt) + 1)
    else:
        max_tokens = min(room, params.max_tokens)
    # The last token is sampled and never computed, so it needs no slot.
    needed = len(prompt) + max(1, max_tokens) - 1
    if needed > info.num_kv_tokens:
        raise InvalidRequestError(
            f"The request needs {needed} tokens of KV cache (prompt {len(prompt)}, max_tokens {max_tokens}) and "
            f"the pool holds {info.num_kv_tokens}. Lower max_tokens or raise num_kv_blocks."
        )
    return max_tokens


def already_running(request_id: int) -> InvalidRequestError:
    """Return the error for the id of an unfinished request: its deltas would be ambiguous."""
    return InvalidRequestError(
        f"request_id is {request_id}, and the request with that id has not ended; give each request an id of its own."
    )


def check_weight(weight: float) -> None:
    """Raise InvalidRequestError unless a tenant's weight is a finite number above 0."""
    if not 0.0 < weight < math.inf:
        raise InvalidRequestError(f"The request's weight is {weight}; it must be a number above 0.")


def check_output_so_far(output: Sequence[int], params: SamplingParams, *, vocab_size: int) -> None:
    """Raise InvalidRequestError unless a request can continue after the tokens of an earlier run."""
    if not output:
        return
    _check_token_ids("output_token_ids", output, vocab_size)
    if params.n != 1:
        raise InvalidRequestError(f"output_token_ids are given with n = {params.n}; only a request with n = 1 goes on.")
    if params.max_tokens is not None and len(output) >= params.max_tokens:
        raise InvalidRequestError(
            f"output_token_ids has {len(output)} tokens and max_tokens is {params.max_tokens}; nothing is left to "
            "generate."
        )


def check_prompt_token_ids(prompt: Sequence[object], *, vocab_size: int) -> None:
    """Raise InvalidRequestError unless a prompt has at least one token id and all are ids of the model."""
    if not prompt:
        raise InvalidRequestError("The prompt has no tokens; give at least one.")
    for index, token_id in enumerate(prompt):
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"The prompt has {reprlib.repr(token_id)} at index {index}; token ids are whole numbers from 0 to "
                f"{vocab_size - 1}. Use the tokenizer of this model."
            )


def kept_end(prompt: list[int], params: SamplingParams, info: EngineInfo) -> list[int]:
    """Return the tokens of a prompt that `truncate_prompt_tokens` keeps.

    Raises InvalidRequestError if none fit beside `max_tokens`.
    """
    most = params.truncate_prompt_tokens
    if most is None:
        return prompt
    if most == -1:
        most = info.max_model_len - max(1, params.max_tokens or 1)
        if most < 1:
            raise InvalidRequestError(
                f"truncate_prompt_tokens is -1 and max_tokens is {params.max_tokens}; this model's context of "
                f"{info.max_model_len} must hold both. Lower max_tokens."
            )
    return prompt[-most:]


def _check_prompt(prompt: Sequence[int], info: EngineInfo) -> None:
    check_prompt_token_ids(prompt, vocab_size=info.vocab_size)
    if len(prompt) >= info.max_model_len:
        raise InvalidRequestError(
            f"The prompt has {len(prompt)} tokens; this model's context of {info.max_model_len} must hold it and one "
            "more. Shorten it."
        )


def _check_tokens(params: SamplingParams, info: EngineInfo) -> None:
    _check_token_ids("stop_token_ids", params.stop_token_ids, info.vocab_size)
    _check_token_ids("logit_bias", tuple(params.logit_bias or ()), info.vocab_size)
    _check_token_ids("allowed_token_ids", params.allowed_token_ids or (), info.vocab_size)
    for token_ids in params.bad_words_token_ids:
        _check_token_ids("bad_words_token_ids", token_ids, info.vocab_size)
    if params.truncate_prompt_tokens is not None:
        raise InvalidRequestError(
            "The request has truncate_prompt_tokens; the engine computes every token that it gets. Cut the prompt, as "
            "LLM does."
        )
    if params.bad_words:
        raise InvalidRequestError(
            "The request has bad_words as text; the engine knows no text. Give them as bad_words_token_ids."
        )
    _check_any_token_left(params, info)


def _check_any_token_left(params: SamplingParams, info: EngineInfo) -> None:
    """Raise unless at every position some token is allowed that ends neither a bad word nor an output too early."""
    forbidden = {token_ids[-1] for token_ids in params.bad_words_token_ids}
    if params.min_tokens:
        forbidden.update(params.stop_token_ids, () if params.ignore_eos else info.eos_token_ids)
    allowed = params.allowed_token_ids
    if len(forbidden) >= info.vocab_size if allowed is None else forbidden.issuperset(allowed):
        raise InvalidRequestError(
            f"Every token that the request allows ends a bad word or, with min_tokens {params.min_tokens}, the output "
            "too early; allow another token, or forbid less."
        )


def _check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(f"{name} has {token_id}; ids run from 0 to {vocab_size - 1}.")
