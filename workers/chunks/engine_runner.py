"""Answers the lines of claimed chunks with one long-lived engine; beside them it counts inputs. Knows no claim."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from engine.process.messages import EngineInfo
from jobs.chunks.fleet import RunningLines
from jobs.chunks.leasing import ClaimedChunk
from workers.chunks.counting import InputCounter
from workers.chunks.parts import WorkerParts
from workers.chunks.run import ChunkRun
from workers.drain import Drain
from workers.engine_host.host import EngineHost
from workers.engine_metrics import engine_metrics

log = logging.getLogger(__name__)


class EngineRunner:
    """The `Runner` of a GPU worker."""

    def __init__(self, host: EngineHost, make_parts: Callable[[EngineInfo, Drain], WorkerParts], *, model: str) -> None:
        """`make_parts` is called once the engine is ready, with what it said of itself."""
        self._host = host
        self._make_parts = make_parts
        self._model = model
        self._parts: WorkerParts | None = None
        self._counter: InputCounter | None = None

    def start(self, drain: Drain, *, is_busy: Callable[[], bool]) -> int:
        info = self._host.start()
        self._parts = self._make_parts(info, drain)
        self._counter = InputCounter(self._parts, model=self._model, is_busy=is_busy)
        self._counter.start()
        log.info("engine ready device=%s dtype=%s products=%s", info.device, info.dtype, info.products)
        return info.max_model_len

    def run(self, claim: ClaimedChunk) -> bool:
        assert self._parts is not None, "start() first"
        return ChunkRun(claim, self._parts).run()

    def metrics(self) -> Mapping[str, Any]:
        return engine_metrics(self._host.stats)

    def running_lines(self) -> Mapping[str, RunningLines]:
        return self._host.running_lines()

    def begin_drain(self) -> None:
        if self._counter is not None:
            self._counter.stop()

    def join(self) -> None:
        if self._counter is not None:
            self._counter.join()

    def close(self) -> None:
        self._host.close()
