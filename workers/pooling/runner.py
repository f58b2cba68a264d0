"""Answers the lines of claimed chunks with one model that pools, in this process. Knows no claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jobs.chunks.fleet import RunningLines
from jobs.chunks.leasing import ClaimedChunk
from workers.drain import Drain
from workers.pooling.run import PoolParts, PoolRun


class PoolRunner:
    """The `Runner` of a worker whose model answers with vectors or scores."""

    def __init__(self, make_parts: Callable[[Drain], PoolParts]) -> None:
        self._make_parts = make_parts
        self._parts: PoolParts | None = None

    def start(self, drain: Drain, *, is_busy: Callable[[], bool]) -> int:
        self._parts = self._make_parts(drain)
        return self._parts.model.max_tokens

    def run(self, claim: ClaimedChunk) -> bool:
        assert self._parts is not None, "start() first"
        return PoolRun(claim, self._parts).run()

    def metrics(self) -> Mapping[str, Any]:
        assert self._parts is not None, "start() first"
        return {"num_requests_running": sum(running.num_lines for running in self.running_lines().values())}

    def running_lines(self) -> Mapping[str, RunningLines]:
        assert self._parts is not None, "start() first"
        return self._parts.answers.running.by_batch()

    def begin_drain(self) -> None: ...

    def join(self) -> None: ...

    def close(self) -> None: ...
