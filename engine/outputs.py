"""Outputs of the engine: token deltas of every step, and the finished results users see.

Plain values, independent of scheduling and models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

NO_TOKEN = -1
"""In place of a token if grammar, allowed tokens and bad words together leave none."""

BROKEN_ROW = -2
"""In place of a token if the model's logits have a NaN or plus infinity, or are all minus infinity."""


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token, a stop string, or the end of a structured output."""
    LENGTH = "length"
    """`max_tokens`, or the model's context."""
    ABORT = "abort"
    """The requester cancelled it."""
    ERROR = "error"
    """It could not start or continue; the delta's `error` says why."""


@dataclass(slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of one generated token, natural log, from the raw distribution."""

    logprob: float
    rank: int
    """Rank of the chosen token; 1 = most likely."""
    top_token_ids: list[int]
    """Most likely first, like `top_logprobs`."""
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class SequenceTimes:
    """When a sequence reached each stage, in seconds since the epoch."""

    arrived_at: float
    started_at: float
    """When it first got a seat."""
    first_token_at: float
    ended_at: float


@dataclass(slots=True, kw_only=True)
class TokenDelta:
    """New tokens of one child of a request."""

    request_id: int
    index: int = 0
    """Index of the child."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    """If requested, sent once for all children, with the first tokens of child 0: one entry for each prompt token from
    the second on.
    """
    finish_reason: FinishReason | None = None
    """Set on the child's last delta."""
    stop_reason: int | None = None
    """The stop token, if it was one of `stop_token_ids`."""
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache."""
    num_preemptions: int = 0
    """How often the child has been preempted so far."""
    num_swaps: int = 0
    """How often its blocks went to host memory when it was preempted."""
    error: str | None = None
    """Set only with finish_reason "error"."""
    times: SequenceTimes | None = None
    """Set with the end of a child that had tokens."""
    good_rows_before: int | None = None
    """If the error is a broken row: how many tokens the engine had drawn from good rows until then."""

    @property
    def is_broken(self) -> bool:
        """Tell whether the child ended because the model's logits were NaN or infinite."""
        return self.good_rows_before is not None

    def extend(self, later: TokenDelta) -> None:
        """Merge the next delta of the same child into this one."""
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = [*(self.logprobs or []), *later.logprobs]
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        self.finish_reason, self.stop_reason, self.error = later.finish_reason, later.stop_reason, later.error
        self.num_cached_tokens = max(self.num_cached_tokens, later.num_cached_tokens)
        self.times, self.good_rows_before = later.times, later.good_rows_before
        self.num_preemptions, self.num_swaps = later.num_preemptions, later.num_swaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """One token's log-probability."""

    logprob: float
    rank: int | None = None
    """1 = most likely."""
    decoded_token: str | None = None
    """Its text; None without a tokenizer."""


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
    """The stop token or stop string that ended it."""
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A finished request: its prompt and its outputs."""

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    """One for each child, in order."""
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """An entry for each prompt token; None for the first, which has no context."""
    finished: bool = True
    num_cached_tokens: int = 0
