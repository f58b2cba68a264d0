"""A request while it runs: one `Sequence` per child, and the rule for when it ends. No torch, no text."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Protocol, Self

from engine.outputs import FinishReason, TokenLogprobs
from engine.params import SamplingParams
from engine.scheduling.blocks import PrefixChain

RoundKey = tuple[bool, int, bytes]
"""Where a prompt is among a tenant's that wait: whether in the later rounds, the round's number, how far into it."""
NO_ROUND: RoundKey = (False, 0, b"")
_SEED_MASK = (1 << 64) - 1


class Matcher(Protocol):
    """Where one sequence's output stands in its grammar, as far as a sequence asks; made by engine/grammars."""

    @property
    def error(self) -> str | None:
        """Return why nothing can be matched any more."""

    @property
    def is_spent(self) -> bool:
        """Tell whether its copies can go on no more, for what one of them has met."""

    def copy(self) -> Self:
        """Return an independent matcher at the same place."""

    def accept(self, token_id: int) -> bool:
        """Go on by a token; False if the grammar does not allow it here."""

    def replay(self, token_ids: AnySequence[int]) -> bool:
        """Go on by the output of an earlier run; False if the grammar does not allow it."""

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
    weight: float = 1.0
    """Of its tenant, above 0: with twice the weight of another, twice as many tokens while both wait."""
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


@dataclass(slots=True, eq=False)
class Seat:
    """What a running sequence holds: its row of the block table, and blocks. `SeatMap` alone writes it."""

    row: int
    block_ids: list[int]
    num_published_blocks: int
    """How many of the blocks, from the first on, others can find."""
    chain_position: int
    """Where the pool's chain of found blocks stands after them."""


@dataclass(frozen=True, slots=True)
class Parked:
    """What a preempted sequence left in host memory. `SwapSpace` alone writes it."""

    host_block_ids: list[int]
    num_tokens: int
    """How many computed tokens are in these blocks."""


@dataclass(slots=True, eq=False)
class Times:
    """When things happened to a sequence, in seconds on the scheduler's clock."""

    arrived_at: float = 0.0
    """When the engine accepted it; given when it is made."""
    queued_at: float = 0.0
    """When it came to the scheduler or was last preempted; the scheduler writes it."""
    started_at: float = 0.0
    """When it first got a seat; the scheduler writes it."""
    first_token_at: float | None = None
    """When its first token was reported; the recorder writes it, and the next."""
    last_token_at: float | None = None
    """When its newest token was reported; the recorder writes it."""


@dataclass(slots=True, init=False, eq=False, repr=False)
class Sequence:
    """One child of a request: its tokens, how far they are computed, and what it holds.

    What one room of the engine keeps of a sequence is a part of its own, which only that room writes. The numbers that
    every step reads of every sequence are in no part: one look-up more for each would slow the step.
    """

    request: Request
    index: int
    chain: PrefixChain
    seed: int
    num_prompt_tokens: int
    max_total_tokens: int
    stop_token_ids: frozenset[int]

    token_ids: list[int]
    """The prompt, then the output; `append` and `expect_token` alone write this and the next three."""
    num_tokens: int
    """More than `num_computed_tokens` while it runs: the last token is computed one step after it was sampled."""
    num_pending: int
    """How many of them are not in `token_ids` yet: a step may be planned before the host knows those of the last."""
    last_token_id: int

    num_computed_tokens: int
    """The scheduler alone writes this and the next four."""
    num_cached_tokens: int
    num_preemptions: int
    num_swaps: int
    rank: tuple[Any, ...]
    """Orders it among the running ones by the policy, after every protected one."""

    has_long_angles: bool
    """Whether its keys are turned as in sequences longer than `SchedulerConfig.angles_change_after`; the scheduler
    writes it.
    """

    draft_token_ids: list[int]
    """Guesses at what follows; the next step computes them too and keeps those that it would have sampled itself.

    Whoever drafts sets them between steps; the scheduler cuts them to the room there is, and clears them.
    """

    seat: Seat | None
    parked: Parked | None
    times: Times

    is_protected: bool
    """Whether it started for its age alone; the waiting queue writes it."""
    leader: Sequence | None
    """Whose prompt it shares; `Followers` writes it."""
    round_key: RoundKey
    """Orders it among waiting prompts; `PromptTurns` gives it, and the policy drops it when it starts: it is long."""
    num_charged_tokens: int
    """For how many its tenant was charged; a policy that charges writes it."""

    matcher: Matcher | None
    """Follows the output's grammar, where there is one; set once, by engine/grammars/output.py."""
    prompt_logprobs: list[TokenLogprobs] | None
    """Not None while a prompt's log-probabilities are gathered, by the runner, from the second token on.

    Child 0 does it for all children; the recorder reports them once.
    """

    def __init__(self, request: Request, index: int, chain: PrefixChain, *, arrived_at: float = 0.0) -> None:
        self.request = request
        self.index = index
        self.chain = chain
        self.seed = (request.seed + index) & _SEED_MASK
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_total_tokens = self.num_prompt_tokens + request.max_tokens
        self.stop_token_ids = request.stop_token_ids
        self.token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self.num_tokens = len(self.token_ids)
        self.num_pending = 0
        self.last_token_id = self.token_ids[-1]
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_swaps = 0
        self.rank = ()
        self.has_long_angles = False
        self.draft_token_ids = []
        self.seat = None
        self.parked = None
        self.times = Times(arrived_at)
        self.is_protected = False
        self.leader = None
        self.round_key = NO_ROUND
        self.num_charged_tokens = 0
        self.matcher = None
        asks_for_prompt_logprobs = index == 0 and request.params.prompt_logprobs is not None
        self.prompt_logprobs = [] if asks_for_prompt_logprobs else None

    @property
    def row(self) -> int:
        """Return its row of the block table; it must have a seat."""
        assert self.seat is not None, "the sequence has no seat"
        return self.seat.row

    @property
    def block_ids(self) -> list[int]:
        """Return the blocks it holds; none without a seat."""
        return [] if self.seat is None else self.seat.block_ids

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
    def prompt_bytes(self) -> bytes:
        """Return its tokens in four bytes each: two begin alike where their tokens do."""
        return array("I", self.token_ids).tobytes()

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


row_of: Callable[[Sequence], int] = attrgetter("seat.row")
"""Return a seated sequence's row; what `Sequence.row` is, but asked for whole steps, where it costs half."""


def derive_seed(engine_seed: int, request_id: int) -> int:
    """Return the seed of a request that gave none: 63 bits from the engine's seed and the request's id."""
    digest = hashlib.sha256(f"{engine_seed}:{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
