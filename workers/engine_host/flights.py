"""Requests on their way through an engine, each with its owner; and the probe, which is nobody's."""

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
    """Who asked for a request. Called from the host's reader thread: return quickly, raise nothing."""

    @property
    def name(self) -> str:
        """Return what logs call the request."""

    @property
    def line(self) -> tuple[str, int] | None:
        """Return the id of the batch and the number of the line that it is of; None where it is of none."""

    @property
    def num_broken(self) -> int:
        """Return how often a broken row has ended the line, on other workers too."""

    @property
    def num_output_tokens(self) -> int:
        """Return how many tokens the engine has generated for it so far, as far as it has reported them."""

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


def lines_of(flights: Iterable[Flight], running_ids: Collection[int]) -> dict[str, RunningLines]:
    """Return by batch how many lines have a request among `running_ids`, and the tokens generated for all its lines."""
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
    """Owns a request of our own, whose end alone is of interest."""

    name = "probe"
    line = None
    num_broken = 0
    num_output_tokens = 0

    def receive(self, delta: TokenDelta) -> None: ...

    def start_over(self) -> None: ...

    def set_aside(self) -> None: ...


def make_probe(request_id: int) -> Flight:
    """Return a prompt and an answer of a few tokens: what any engine that works survives."""
    params = SamplingParams(max_tokens=2, temperature=0.0)
    new = NewRequest(request_id=request_id, prompt_token_ids=[0] * _PROBE_TOKENS, params=params)
    return Flight(new, Probe(), open_children=1)
