"""A running request: one `Sequence` per child, and the rule for when it ends. No torch, no text."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Callable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Protocol, Self

from engine.outputs import FinishReason, TokenLogprobs
from engine.params import SamplingParams
from engine.scheduling.blocks import PrefixChain
from engine.scheduling.seat_numbers import MAX_STOP_TOKENS, Seat, SeatNumber, own_numbers

RoundKey = tuple[bool, int, bytes]
"""Place of a prompt among its tenant's waiting ones: whether in the later rounds, the round, the prompt's bytes."""
NO_ROUND: RoundKey = (False, 0, b"")
_SEED_MASK = (1 << 64) - 1
_serials = itertools.count(1)


class LoadedAdapter(Protocol):
    """A loaded adapter, as a request holds it; engine/models has its weights."""

    @property
    def identity(self) -> str:
        """Return what tells its weights from those of all others."""


class Matcher(Protocol):
    """Position of one sequence's output in its grammar, as a sequence uses it; made by engine/grammars."""

    @property
    def error(self) -> str | None:
        """Return why matching cannot continue."""

    @property
    def is_spent(self) -> bool:
        """Tell whether copies of it are unusable because one of them failed."""

    def copy(self) -> Self:
        """Return an independent matcher at the same position."""

    def accept(self, token_id: int) -> bool:
        """Advance by a token; return False if the grammar does not allow it here."""

    def replay(self, token_ids: AnySequence[int]) -> bool:
        """Advance by the output of an earlier run; return False if the grammar does not allow it."""

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must follow; often empty."""

    def num_allowed(self, token_ids: list[int]) -> int:
        """Return how many of these tokens could follow, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A prompt to run, as the worker sends it to its engine process and on to the engine."""

    request_id: int
    prompt_token_ids: AnySequence[int]
    params: SamplingParams
    priority: int = 0
    """The lowest runs first."""
    deadline: float | None = None
    """In seconds since the epoch; within a priority the earliest runs first."""
    tenant: str = ""
    """The tenant that owns the request; only requests of one tenant share cached prefixes."""
    weight: float = 1.0
    """The tenant's weight, above 0: with twice the weight of another, it gets twice as many tokens while both wait."""
    output_token_ids: AnySequence[int] = ()
    """The output of an earlier run of the same request (n = 1): this one continues after it and reports only new
    tokens.

    With the same seed these are the tokens that the earlier run would have drawn.
    """
    adapter: str | None = None
    """Folder of the adapter that changes the model for this request; None for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(NewRequest):
    """A request that the engine has checked and accepted, with its open values resolved."""

    max_tokens: int
    seed: int
    eos_token_ids: frozenset[int]
    arrival: int
    """Orders requests by arrival."""
    loaded_adapter: LoadedAdapter | None = None

    @classmethod
    def accept(
        cls,
        new: NewRequest,
        *,
        max_tokens: int,
        seed: int,
        eos_token_ids: frozenset[int],
        arrival: int,
        loaded_adapter: LoadedAdapter | None = None,
    ) -> Request:
        """Return the new request with what the engine resolved."""
        return cls(
            **{field.name: getattr(new, field.name) for field in fields(NewRequest)},
            max_tokens=max_tokens,
            seed=seed,
            eos_token_ids=eos_token_ids,
            arrival=arrival,
            loaded_adapter=loaded_adapter,
        )

    @property
    def prefix_owner(self) -> str:
        """Return who may share cached prefixes with it: keys and values depend on the adapter, too."""
        return self.tenant if self.loaded_adapter is None else f"{self.tenant}\0{self.loaded_adapter.identity}"

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Return every token that ends a sequence."""
        own = frozenset(self.params.stop_token_ids)
        return own if self.params.ignore_eos else own | self.eos_token_ids


@dataclass(frozen=True, slots=True)
class Parked:
    """A preempted sequence's KV in host memory. Only `SwapSpace` writes it."""

    host_block_ids: list[int]
    num_tokens: int
    """How many computed tokens are in these blocks."""


@dataclass(slots=True, eq=False)
class Times:
    """Times of a sequence's events, in seconds on the scheduler's clock."""

    arrived_at: float = 0.0
    """When the engine accepted it; set on construction."""
    queued_at: float = 0.0
    """When it reached the scheduler or was last preempted; written by the scheduler."""
    started_at: float = 0.0
    """When it first got a seat; written by the scheduler."""
    first_token_at: float | None = None
    """When its first token was reported; written by the recorder."""


@dataclass(slots=True, init=False, eq=False, repr=False)
class Sequence:
    """One child of a request: its tokens, how many are computed, and the blocks it holds.

    State that one part of the engine keeps about a sequence is an object of its own, which only that part writes.
    Numbers that every step reads of every sequence are in a row of `numbers`: seat_numbers.py has their meaning.
    """

    request: Request
    index: int
    chain: PrefixChain
    seed: int
    num_prompt_tokens: int
    """The seat has a copy of this and the next one, which never change."""
    max_total_tokens: int
    stop_token_ids: frozenset[int]

    numbers: memoryview[int]
    """Its row: its own, or its seat's. Only `sit` and `stand_up` replace it."""
    seat: Seat | None

    num_preemptions: int
    """Only the scheduler writes this and the next two."""
    num_swaps: int
    rank: tuple[Any, ...]
    """Sort key among the running sequences, after every protected one."""

    is_live: bool
    """Whether the scheduler has it: it has neither ended nor been aborted. Written by the roster."""

    parked: Parked | None
    times: Times

    is_protected: bool
    """Whether it started because of its age; written by the waiting queue."""
    leader: Sequence | None
    """The sequence whose prompt it shares; written by `Followers`."""
    round_key: RoundKey
    """Sort key among waiting prompts; set by `PromptTurns`, dropped by the policy at the start because it is long."""

    matcher: Matcher | None
    """Follows the output's grammar, if it has one; set once, by engine/grammars/output.py."""
    prompt_logprobs: list[TokenLogprobs] | None
    """Not None while the runner gathers a prompt's log-probabilities, from the second token on.

    Child 0 gathers them for all children; the recorder reports them once.
    """

    _token_ids: list[int]
    _draft_token_ids: list[int]

    serial = SeatNumber()
    num_tokens = SeatNumber()
    num_pending = SeatNumber()
    last_token_id = SeatNumber()
    num_computed_tokens = SeatNumber()
    num_cached_tokens = SeatNumber()
    num_drafts = SeatNumber()
    num_blocks = SeatNumber()
    num_published_blocks = SeatNumber()
    num_fresh_tokens = SeatNumber()
    num_held_tokens = SeatNumber()
    last_token_ns = SeatNumber()
    account = SeatNumber()
    num_charged_tokens = SeatNumber()
    has_long_angles = SeatNumber()
    is_watched = SeatNumber()
    asks_more = SeatNumber()

    def __init__(self, request: Request, index: int, chain: PrefixChain, *, arrived_at: float = 0.0) -> None:
        self.request = request
        self.index = index
        self.chain = chain
        self.seed = (request.seed + index) & _SEED_MASK
        self.stop_token_ids = request.stop_token_ids
        self.numbers = own_numbers()
        self.seat = None
        self.serial = next(_serials)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_total_tokens = self.num_prompt_tokens + request.max_tokens
        self._token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        self._draft_token_ids = []
        self.num_tokens = len(self._token_ids)
        self.last_token_id = self._token_ids[-1]
        self.last_token_ns = -1
        self.is_watched = bool(request.params.stop)
        self.num_preemptions = 0
        self.num_swaps = 0
        self.rank = ()
        self.is_live = False
        self.parked = None
        self.times = Times(arrived_at)
        self.is_protected = False
        self.leader = None
        self.round_key = NO_ROUND
        self.matcher = None
        asks_for_prompt_logprobs = index == 0 and request.params.prompt_logprobs is not None
        self.prompt_logprobs = [] if asks_for_prompt_logprobs else None

    def sit(self, seat: Seat) -> None:
        """Keep its numbers in the seat's row from now on; only `SeatTable` calls this and `stand_up`."""
        self.seat, self.numbers = seat, seat.numbers

    def stand_up(self) -> None:
        """Keep its numbers in a row of its own again; it gives up the seat and its blocks."""
        self.settle()
        numbers = own_numbers()
        numbers[:] = self.numbers
        self.seat, self.numbers = None, numbers
        self.num_blocks = self.num_published_blocks = 0

    def settle(self) -> None:
        """Put the fresh tokens, which are in its seat, into its list."""
        count = self.num_fresh_tokens
        if count:
            assert self.seat is not None, "fresh tokens are in a seat"
            self._token_ids += self.seat.fresh_token_ids[:count].tolist()
            self.num_fresh_tokens = 0

    @property
    def token_ids(self) -> list[int]:
        """Return the prompt, then the output as far as the host knows it; only `append` and `settle` add to it."""
        self.settle()
        return self._token_ids

    @property
    def draft_token_ids(self) -> list[int]:
        """Return guesses at the next tokens.

        The next step computes them too and keeps those that it would have sampled itself. The drafter sets them between
        steps; the scheduler cuts them to the available room, and clears them.
        """
        return self._draft_token_ids

    @draft_token_ids.setter
    def draft_token_ids(self, token_ids: list[int]) -> None:
        self._draft_token_ids = token_ids
        self.num_drafts = len(token_ids)

    @property
    def row(self) -> int:
        """Return its row of the seat table; it must have a seat."""
        assert self.seat is not None, "the sequence has no seat"
        return self.seat.row

    @property
    def block_ids(self) -> list[int]:
        """Return the blocks it holds; empty without a seat."""
        return [] if self.seat is None else self.seat.block_table[: self.num_blocks].tolist()

    @property
    def records_more(self) -> bool:
        """Tell whether its tokens are recorded one by one: with a grammar, log-probabilities or many stop tokens."""
        has_logprobs = self.request.params.logprobs is not None or self.prompt_logprobs is not None
        return self.matcher is not None or has_logprobs or len(self.stop_token_ids) > MAX_STOP_TOKENS

    @property
    def num_known_tokens(self) -> int:
        """Return how many tokens the host knows; a count, since a simulated sequence has no `token_ids`."""
        return self.num_tokens - self.num_pending

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens were generated so far, without those still on the device."""
        return self.num_known_tokens - self.num_prompt_tokens

    @property
    def num_sharable_tokens(self) -> int:
        """Return how many tokens from the first on need not be computed if their KV is found.

        The last one must be, to have something to sample from, and so must each whose row gives the log-probability of
        the next prompt token, if those are requested and not known yet.
        """
        scored = self.prompt_logprobs
        is_scored = scored is None or len(scored) == self.num_prompt_tokens - 1
        return self.num_tokens - 1 if is_scored else len(scored or ())

    @property
    def num_due_tokens(self) -> int:
        """Return how many tokens, without drafts, must be computed before the next one can be sampled."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Return `num_due_tokens` plus the drafts."""
        return self.num_due_tokens + self.num_drafts

    @property
    def prompt_bytes(self) -> bytes:
        """Return its tokens in four bytes each, so that prompts with common first tokens have a common prefix."""
        return array("I", self.token_ids).tobytes()

    @property
    def has_prompt_computed(self) -> bool:
        """Tell whether every prompt token's KV is in the cache."""
        return self.num_computed_tokens >= self.num_prompt_tokens

    def append(self, token_id: int) -> tuple[FinishReason, int | None] | None:
        """Append a sampled token; if it ends the sequence, return the finish reason and the requested stop token."""
        self.token_ids.append(token_id)
        self.last_token_id = token_id
        if self.num_pending:
            self.num_pending -= 1
        else:
            self.num_tokens += 1
        params = self.request.params
        if token_id in self.stop_token_ids and (self.matcher is not None or self.num_output_tokens > params.min_tokens):
            return FinishReason.STOP, token_id if token_id in params.stop_token_ids else None
        if self.num_known_tokens >= self.max_total_tokens:
            return FinishReason.LENGTH, None
        return None


row_of: Callable[[Sequence], int] = attrgetter("seat.row")
"""Return a seated sequence's row, like `Sequence.row` at half the cost, for loops over all of them."""


def derive_seed(engine_seed: int, request_id: int) -> int:
    """Return the seed of a request without one: 63 bits from the engine's seed and the request's id."""
    digest = hashlib.sha256(f"{engine_seed}:{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
