"""A request while it runs: one `Sequence` per child, and the rule for when it ends. No torch, no text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

from engine.outputs import FinishReason, TokenLogprobs
from engine.params import SamplingParams
from engine.scheduling.blocks import NO_PARENT, PrefixChain

_SEED_MASK = (1 << 64) - 1


class Matcher(Protocol):
    """Where one sequence's output stands in its grammar, as far as a sequence asks; made by engine/grammars."""

    @property
    def error(self) -> str | None:
        """Return why nothing can be matched any more."""

    def copy(self) -> Self:
        """Return an independent matcher at the same place."""

    def take(self, token_id: int) -> bool:
        """Go on by a token; False if the grammar does not allow it here."""

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must follow; often none."""

    def num_allowed(self, token_ids: list[int]) -> int:
        """Return how many of these tokens, one after the other, could follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """One prompt to run, as it is handed over: from the worker to its engine process and on to the engine."""

    request_id: int
    prompt_token_ids: AnySequence[int]
    params: SamplingParams
    priority: int = 0
    """The lowest runs first."""
    deadline: float | None = None
    """In seconds since the epoch; of one priority the earliest runs first."""
    tenant: str = ""
    """Whom it is run for; only requests of one tenant share cached prefixes."""
    output_token_ids: AnySequence[int] = ()
    """What an earlier run of the same request (n = 1) generated: it goes on after them and reports only what is new.

    With the same seed these are the tokens that the earlier run would have taken.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(NewRequest):
    """A request that the engine has checked and accepted, with what was left open resolved."""

    max_tokens: int
    seed: int
    eos_token_ids: frozenset[int]
    arrival: int
    """Orders requests by when they came."""

    @classmethod
    def accept(
        cls, new: NewRequest, *, max_tokens: int, seed: int, eos_token_ids: frozenset[int], arrival: int
    ) -> Request:
        """Return the new request with what the engine resolved."""
        asked = {field.name: getattr(new, field.name) for field in fields(NewRequest)}
        return cls(**asked, max_tokens=max_tokens, seed=seed, eos_token_ids=eos_token_ids, arrival=arrival)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Return every token that ends a sequence."""
        own = frozenset(self.params.stop_token_ids)
        return own if self.params.ignore_eos else own | self.eos_token_ids


class Sequence:
    """One child of a request: its tokens, how far they are computed, and the blocks it owns.

    The scheduler alone changes it. `rank` orders it among the running ones by the policy, after every protected one;
    `queued_at` is when it came or was last preempted, on the scheduler's clock, `started_at` when it first got a seat.
    `token_ids` holds the prompt, then the output; the last output token is computed one step after it was sampled, so
    `num_computed_tokens < num_tokens` while it runs. A step may be planned before the host knows the tokens of the one
    before: `num_pending` of `num_tokens` are then not in `token_ids` yet. `draft_token_ids` are guesses at what
    follows; the next step computes them too and keeps those that it would have sampled itself. `prompt_logprobs` is not
    None while a prompt's log-probabilities are being gathered, by the runner, from the second token on; child 0 does it
    for all children. `matcher` follows the output's grammar, where there is one.
    """

    __slots__ = (
        "arrived_at",
        "block_ids",
        "chain",
        "chain_position",
        "draft_token_ids",
        "host_block_ids",
        "index",
        "is_protected",
        "is_running",
        "last_token_at",
        "last_token_id",
        "leader",
        "matcher",
        "max_total_tokens",
        "num_cached_tokens",
        "num_charged_tokens",
        "num_computed_tokens",
        "num_host_tokens",
        "num_pending",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_tokens",
        "prompt_logprobs",
        "queued_at",
        "rank",
        "request",
        "row",
        "seed",
        "started_at",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, chain: PrefixChain) -> None:
        self.request = request
        self.index = index
        self.chain = chain
        self.seed = (request.seed + index) & _SEED_MASK
        self.token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self.num_tokens = len(self.token_ids)
        self.num_pending = 0
        self.last_token_id = self.token_ids[-1]
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_total_tokens = self.num_prompt_tokens + request.max_tokens
        self.stop_token_ids = request.stop_token_ids
        self.num_computed_tokens = 0
        self.num_charged_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.draft_token_ids: list[int] = []
        self.prompt_logprobs: list[TokenLogprobs] | None = None
        if index == 0 and request.params.prompt_logprobs is not None:
            self.prompt_logprobs = []
        self.block_ids: list[int] = []
        self.host_block_ids: list[int] = []
        self.num_host_tokens = 0
        self.num_published_blocks = 0
        self.chain_position = NO_PARENT
        self.row = -1
        self.is_running = False
        self.is_protected = False
        self.queued_at = 0.0
        self.arrived_at = 0.0
        self.started_at = 0.0
        self.last_token_at: float | None = None
        self.rank: tuple[Any, ...] = ()
        self.leader: Sequence | None = None
        self.matcher: Matcher | None = None

    @property
    def num_known_tokens(self) -> int:
        """Return how many tokens the host knows; counted, since a simulated sequence has no `token_ids`."""
        return self.num_tokens - self.num_pending

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens were generated so far, those on the device not counted."""
        return self.num_known_tokens - self.num_prompt_tokens

    @property
    def num_sharable_tokens(self) -> int:
        """Return how many tokens from the first on need not be computed where their KV is found.

        The last one must be, or there would be nothing to sample from; and each whose row tells the log-probability of
        the next prompt token, where those are asked for and not known yet.
        """
        scored = self.prompt_logprobs
        is_scored = scored is None or len(scored) == self.num_prompt_tokens - 1
        return self.num_tokens - 1 if is_scored else len(scored or ())

    @property
    def num_due_tokens(self) -> int:
        """Return how many tokens, drafts aside, are to be computed before the next one can be sampled."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Return the same with the drafts."""
        return self.num_due_tokens + len(self.draft_token_ids)

    @property
    def has_prompt_computed(self) -> bool:
        """Tell whether every prompt token's KV is in the cache."""
        return self.num_computed_tokens >= self.num_prompt_tokens

    def expect_token(self) -> None:
        """Count a token that the device is drawing; `append` brings its value."""
        self.num_pending += 1
        self.num_tokens += 1

    def append(self, token_id: int) -> tuple[FinishReason, int | None] | None:
        """Take a sampled token; return the finish reason and the stop token asked for, if it ends here."""
        self.token_ids.append(token_id)
        self.last_token_id = token_id
        if self.num_pending:
            self.num_pending -= 1
        else:
            self.num_tokens += 1
        is_late_enough = self.matcher is not None or self.num_output_tokens > self.request.params.min_tokens
        if token_id in self.stop_token_ids and is_late_enough:
            asked_for = token_id in self.request.params.stop_token_ids
            return FinishReason.STOP, token_id if asked_for else None
        if len(self.token_ids) >= self.max_total_tokens:
            return FinishReason.LENGTH, None
        return None


def derive_seed(engine_seed: int, request_id: int) -> int:
    """Return the seed of a request that gave none: 63 bits from the engine's seed and the request's id."""
    digest = hashlib.sha256(f"{engine_seed}:{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
