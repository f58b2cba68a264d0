"""Requests on their way through an engine, each with its owner; and the probe, which is nobody's."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from engine.params import SamplingParams
from engine.process.messages import FinishReason, TokenDelta
from engine.scheduling.request import NewRequest

_PROBE_TOKENS = 16


class Owner(Protocol):
    """Who asked for a request. Called from the host's reader thread: return quickly, raise nothing."""

    @property
    def name(self) -> str:
        """Return what logs call the request."""

    @property
    def line(self) -> Hashable:
        """Return what is the same for all requests of one line, and of no other."""

    @property
    def num_broken(self) -> int:
        """Return how often a broken row has ended the line, on other workers too."""

    def receive(self, delta: TokenDelta) -> None:
        """Receive new tokens of one child; a finish reason on its last delta."""

    def start_over(self) -> None:
        """Forget all tokens since the submission: the engine died and the request runs again."""

    def set_aside(self) -> None:
        """Do the same after a broken row, which counts; the request runs again on another engine."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request that was submitted, until it ends."""

    request: NewRequest
    owner: Owner
    open_children: int
    crashes: int = 0

    @property
    def request_id(self) -> int:
        return self.request.request_id

    @property
    def is_probe(self) -> bool:
        return isinstance(self.owner, Probe)

    def fail(self, message: str) -> None:
        """Let the owner hear that the request ends with an error."""
        error = TokenDelta(request_id=self.request_id, finish_reason=FinishReason.ERROR, error=message)
        self.owner.receive(error)


class Probe:
    """Owns a request of our own, whose end alone is of interest."""

    name = line = "probe"
    num_broken = 0

    def receive(self, delta: TokenDelta) -> None: ...

    def start_over(self) -> None: ...

    def set_aside(self) -> None: ...


def make_probe(request_id: int) -> Flight:
    """Return a prompt and an answer of a few tokens: what any engine that works survives."""
    params = SamplingParams(max_tokens=2, temperature=0.0)
    new = NewRequest(request_id=request_id, prompt_token_ids=[0] * _PROBE_TOKENS, params=params)
    return Flight(new, Probe(), open_children=1)
