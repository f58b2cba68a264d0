"""Requests and sequences of counts: lengths and shared parts of prompts, without tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from engine.scheduling.blocks import PrefixChain
from engine.scheduling.request import Request, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """The scheduler's view of a request, and the number of tokens that it will really generate."""

    arrival_seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    has_known_length: bool = False
    """The scheduler knows that all of `max_tokens` will be generated."""
    priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    prefix: str = ""
    num_prefix_tokens: int = 0
    """Number of first prompt tokens shared by requests of one tenant with the same `prefix`."""
    prompt_bytes: bytes | None = None
    """Its place in the order of prompts, to repeat a run with tokens; None: ordered by its `prefix`."""

    def __post_init__(self) -> None:
        assert 1 <= self.num_output_tokens <= self.max_tokens, f"{self.num_output_tokens} of {self.max_tokens} tokens"
        assert 0 <= self.num_prefix_tokens <= self.num_prompt_tokens


class SimulatedSequence(Sequence):
    """A sequence of counts: it has lengths and a chain of its own, and no tokens."""

    __slots__ = ("asked", "first_token_at", "num_tokens_at_end")

    def __init__(self, request: Request, asked: SimulatedRequest, block_size: int) -> None:
        super().__init__(request, 0, CountedChain(request.request_id, asked, block_size))
        self.asked = asked
        self.num_tokens = self.num_prompt_tokens = asked.num_prompt_tokens
        self.max_total_tokens = asked.num_prompt_tokens + asked.max_tokens
        self.num_tokens_at_end = asked.num_prompt_tokens + asked.num_output_tokens
        self.first_token_at = math.nan

    @property
    def prompt_bytes(self) -> bytes:
        """Return a sort key that puts sequences with one prefix next to each other."""
        prompt = self.asked.prompt_bytes
        return f"{self.asked.prefix}\0{self.request.request_id}".encode() if prompt is None else prompt


class CountedChain(PrefixChain):
    """The blocks of a sequence named instead of hashed: by the shared prefix as far as it reaches, then by the request.

    The block that contains the end of the shared prefix belongs to the request.
    """

    __slots__ = ("_num_shared", "_own", "_shared")

    def __init__(self, request_id: int, asked: SimulatedRequest, block_size: int) -> None:
        self._num_shared = asked.num_prefix_tokens // block_size if asked.prefix else 0
        self._shared = f"{asked.tenant}\0{asked.prefix}".encode()
        self._own = request_id

    def at(self, index: int, token_ids: AnySequence[int]) -> tuple[bytes, bytes]:
        """Return the block's name, as digest and as content."""
        name = b"%s\0%d" % (self._shared, index) if index < self._num_shared else b"%d:%d" % (self._own, index)
        return name, name
