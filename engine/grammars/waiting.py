"""Requests that wait for their grammar before they can be scheduled."""

from __future__ import annotations

from dataclasses import dataclass

from engine.grammars.compiler import Compilation, GrammarCompiler
from engine.grammars.thinking import behind_thoughts
from engine.scheduling.request import Matcher, Sequence


@dataclass(frozen=True, slots=True)
class Compiled:
    """A request whose wait is over: its children, and the matcher to copy for each, or the reason for its failure."""

    sequences: list[Sequence]
    matcher: Matcher | None
    error: str | None


class GrammarQueue:
    """Hold the children of requests while their grammars are compiled."""

    def __init__(self, compiler: GrammarCompiler[Matcher]) -> None:
        self._compiler = compiler
        self._waiting: dict[int, tuple[Compilation[Matcher], list[Sequence]]] = {}

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        """Tell whether a request waits."""
        return request_id in self._waiting

    @property
    def num_sequences(self) -> int:
        """Return how many sequences wait."""
        return sum(len(sequences) for _, sequences in self._waiting.values())

    def add(self, sequences: list[Sequence]) -> None:
        """Add the children of one request with a grammar."""
        request = sequences[0].request
        assert request.params.structured is not None, "the request has no grammar"
        compilation = self._compiler.submit(request.params.structured, tenant=request.tenant)
        self._waiting[request.request_id] = compilation, sequences

    def pop_compiled(self) -> list[Compiled]:
        """Return the requests whose grammar is compiled, has failed or has exceeded its time, oldest first."""
        if not self._waiting:
            return []
        self._compiler.check_times()
        done = [request_id for request_id, (compilation, _) in self._waiting.items() if compilation.is_done]
        ready = [self._waiting.pop(request_id) for request_id in done]
        return [
            Compiled(sequences, behind_thoughts(compilation.compiled, sequences[0].request), compilation.error)
            for compilation, sequences in ready
        ]

    def abort(self, request_id: int, *, index: int | None = None) -> list[Sequence]:
        """Drop a request's children, or only child `index`, and return them; empty if it does not wait here."""
        if request_id not in self._waiting:
            return []
        compilation, sequences = self._waiting[request_id]
        dropped = [sequence for sequence in sequences if index is None or sequence.index == index]
        left = [sequence for sequence in sequences if sequence not in dropped]
        if left:
            self._waiting[request_id] = compilation, left
        else:
            del self._waiting[request_id]
        return dropped

    def wait(self, seconds: float) -> None:
        """Return when a grammar was compiled, or after the given time."""
        self._compiler.wait(seconds)
