"""What comes out of the engine: token deltas and statistics per step, and the finished results users see.

Plain values; knows nothing of scheduling or models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.timings import Timings

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


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counters since the start (`num_*_total`) and the present state of the engine.

    Drafted tokens are guesses that a step computed; accepted ones are tokens that steps gave beyond their first for it.
    Operations and bytes are estimates from shapes (engine/work.py), in floats because they outgrow every integer that a
    message can hold. The integers do not: at 10^9 a second they would need 292 years. Joules are those of the whole
    GPU, None where nothing counts them (device/energy.py).
    """

    num_running: int = 0
    num_waiting: int = 0
    max_num_seqs: int = 0
    num_kv_blocks: int = 0
    num_used_blocks: int = 0
    num_cached_blocks: int = 0
    num_steps_total: int = 0
    num_prompt_tokens_total: int = 0
    num_output_tokens_total: int = 0
    num_forced_tokens_total: int = 0
    num_computed_tokens_total: int = 0
    num_cached_tokens_total: int = 0
    num_looked_up_tokens_total: int = 0
    num_preemptions_total: int = 0
    num_swaps_total: int = 0
    num_finished_total: int = 0
    num_drafted_tokens_total: int = 0
    num_accepted_tokens_total: int = 0
    num_seqs_total: int = 0
    num_block_steps_total: int = 0
    num_slot_steps_total: int = 0
    num_written_slot_steps_total: int = 0
    num_operations_total: float = 0.0
    num_read_bytes_total: float = 0.0
    num_written_bytes_total: float = 0.0
    num_joules_total: float | None = None
    timings: Timings = field(default_factory=Timings)

    @property
    def mean_batch(self) -> float:
        """Return sequences per step, averaged over all steps."""
        return self.num_seqs_total / max(1, self.num_steps_total)

    @property
    def acceptance_rate(self) -> float:
        """Return the share of the drafted tokens that were accepted; 0 when there were none."""
        return self.num_accepted_tokens_total / max(1, self.num_drafted_tokens_total)

    @property
    def kv_use(self) -> float:
        """Return the share of the pool's blocks that sequences held, averaged over all steps."""
        return self.num_block_steps_total / max(1, self.num_kv_blocks * self.num_steps_total)

    @property
    def kv_waste(self) -> float:
        """Return the share of allocated token slots that held no token, averaged over all steps."""
        return 1.0 - self.num_written_slot_steps_total / max(1, self.num_slot_steps_total)


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
