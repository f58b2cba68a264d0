"""What comes out of the engine: token deltas of every step, and the finished results users see.

Plain values; knows nothing of scheduling or models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

NO_TOKEN = -1
"""Stands for a token where grammar, allowed tokens and bad words together leave none."""


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of one generated token, natural log, from the raw distribution.

    `rank` is the chosen token's place, 1 = most likely; the `top_*` lists are in falling order.
    """

    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(slots=True, kw_only=True)
class TokenDelta:
    """New tokens of one child of a request; `finish_reason` is set on its last delta.

    `prompt_logprobs`, where asked for, come once for all children, with the first tokens of child 0: one entry for each
    prompt token from the second on.
    `num_cached_tokens` counts prompt tokens taken from the prefix cache. `stop_reason` is the stop token, if it was
    one of `stop_token_ids`. `error` is set only with finish_reason "error".
    """

    request_id: int
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None

    def extend(self, later: TokenDelta) -> None:
        """Join the next delta of the same child to this one."""
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *later.logprobs]
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        self.finish_reason, self.stop_reason, self.error = later.finish_reason, later.stop_reason, later.error
        self.num_cached_tokens = max(self.num_cached_tokens, later.num_cached_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One token's log-probability, its rank (1 = most likely) and, with a tokenizer, its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One finished child of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A finished request: its prompt and one output per child, in order.

    `prompt_logprobs` has an entry for each prompt token, None for the first, which nothing comes before.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finished: bool = True
    num_cached_tokens: int = 0
