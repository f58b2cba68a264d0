"""Requests in flight in an engine, each with its owner; and the probe, which has no caller."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from engine.params import SamplingParams
from engine.process.messages import FinishReason, TokenDelta
from engine.scheduling.request import NewRequest
from jobs.chunks.fleet import RunningLines

_PROBE_TOKENS = 16


class Owner(Protocol):
    """The owner of a request. The host's reader thread calls it: return quickly, raise nothing."""

    @property
    def name(self) -> str:
        """Return the request's name in logs."""

    @property
    def line(self) -> tuple[str, int] | None:
        """Return the batch id and line number of the request; None if it belongs to no line."""

    @property
    def num_broken(self) -> int:
        """Return how often a broken row has ended the line, on other workers too."""

    @property
    def num_output_tokens(self) -> int:
        """Return how many generated tokens the engine has reported for it so far."""

    def receive(self, delta: TokenDelta) -> None:
        """Receive new tokens of one child; its last delta has a finish reason."""

    def start_over(self) -> None:
        """Drop all tokens since the submission: the engine died and the request runs again."""

    def set_aside(self) -> None:
        """Start over after a broken row, which is counted; the request runs again on another engine."""


@dataclass(slots=True, eq=False)
class Flight:
    """A submitted request that has not ended."""

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
        """End the request with an error, which its owner receives."""
        error = TokenDelta(request_id=self.request_id, finish_reason=FinishReason.ERROR, error=message)
        self.owner.receive(error)


def lines_of(flights: Iterable[Flight], running_ids: Collection[int]) -> dict[str, RunningLines]:
    """Return by batch how many lines have a request in `running_ids`, and the tokens generated for all its lines."""
    lines: dict[str, set[int]] = defaultdict(set)
    num_tokens: Counter[str] = Counter()
    for flight in flights:
        if flight.owner.line is not None:
            batch_id, line_no = flight.owner.line
            num_tokens[batch_id] += flight.owner.num_output_tokens
            if flight.request_id in running_ids:
                lines[batch_id].add(line_no)
    return {
        batch_id: RunningLines(num_lines=len(lines[batch_id]), num_output_tokens=count)
        for batch_id, count in num_tokens.items()
    }


class Probe:
    """The owner of a request of our own, of which only the end matters."""

    name = "probe"
    line = None
    num_broken = 0
    num_output_tokens = 0

    def receive(self, delta: TokenDelta) -> None: ...

    def start_over(self) -> None: ...

    def set_aside(self) -> None: ...


def make_probe(request_id: int) -> Flight:
    """Return a request of a few tokens, which any working engine survives."""
    params = SamplingParams(max_tokens=2, temperature=0.0)
    new = NewRequest(request_id=request_id, prompt_token_ids=[0] * _PROBE_TOKENS, params=params)
    return Flight(new, Probe(), open_children=1)
