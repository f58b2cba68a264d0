"""A request while it runs: one `Sequence` per child, and the rule for when it ends. No torch, no text."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from engine.blocks import NO_PARENT, PrefixChain
from engine.outputs import FinishReason
from engine.params import SamplingParams

_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for, already checked. `max_tokens` is resolved; `arrival` orders requests by when they came."""

    request_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    seed: int
    eos_token_ids: frozenset[int]
    arrival: int
    priority: int = 0
    deadline: float | None = None
    salt: str = ""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Return every token that ends a sequence."""
        own = frozenset(self.params.stop_token_ids)
        return own if self.params.ignore_eos else own | self.eos_token_ids


class Sequence:
    """One child of a request: its tokens, how far they are computed, and the blocks it owns.

    The scheduler alone changes it. `token_ids` holds the prompt, then the output; the last output token is computed
    one step after it was sampled, so `num_computed_tokens < len(token_ids)` while it runs.
    """

    __slots__ = (
        "block_ids",
        "chain",
        "chain_position",
        "index",
        "is_running",
        "last_token_id",
        "leader",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_tokens",
        "request",
        "row",
        "seed",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, chain: PrefixChain) -> None:
        self.request = request
        self.index = index
        self.chain = chain
        self.seed = (request.seed + index) & _SEED_MASK
        self.token_ids = list(request.prompt_token_ids)
        self.num_tokens = len(self.token_ids)
        self.last_token_id = self.token_ids[-1]
        self.num_prompt_tokens = len(self.token_ids)
        self.max_total_tokens = self.num_prompt_tokens + request.max_tokens
        self.stop_token_ids = request.stop_token_ids
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.block_ids: list[int] = []
        self.num_published_blocks = 0
        self.chain_position = NO_PARENT
        self.row = -1
        self.is_running = False
        self.leader: Sequence | None = None

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens were generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def has_prompt_computed(self) -> bool:
        """Tell whether every prompt token's KV is in the cache."""
        return self.num_computed_tokens >= self.num_prompt_tokens

    @property
    def running_key(self) -> tuple[int, int, int]:
        """Order running sequences; the last one is preempted first: worst priority, then latest arrival."""
        return (self.request.priority, self.request.arrival, self.index)

    @property
    def waiting_key(self) -> tuple[int, bool, float, int, int]:
        """Order waiting sequences: priority, then those that were preempted, then deadline, then arrival."""
        deadline = math.inf if self.request.deadline is None else self.request.deadline
        return (self.request.priority, self.num_preemptions == 0, deadline, self.request.arrival, self.index)

    def append(self, token_id: int) -> tuple[FinishReason, int | None] | None:
        """Take a sampled token; return the finish reason and the stop token asked for, if it ends here."""
        self.token_ids.append(token_id)
        self.last_token_id = token_id
        self.num_tokens += 1
        if token_id in self.stop_token_ids and self.num_output_tokens > self.request.params.min_tokens:
            asked_for = token_id in self.request.params.stop_token_ids
            return FinishReason.STOP, token_id if asked_for else None
        if self.num_tokens >= self.max_total_tokens:
            return FinishReason.LENGTH, None
        return None


def derive_seed(engine_seed: int, request_id: int) -> int:
    """Return the seed of a request that gave none: 63 bits from the engine's seed and the request's id."""
    digest = hashlib.sha256(f"{engine_seed}:{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
