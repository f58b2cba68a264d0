"""Answers lines with one long-lived engine of ours; also counts inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from engine.process.messages import EngineInfo
from jobs.chunks.leasing import ClaimedChunk
from jobs.engines.engine import OWN_ENGINE
from workers.chunks.answerer import Stats
from workers.chunks.counting import InputCounter
from workers.chunks.engine_lines import EngineLines
from workers.chunks.engine_parts import EngineParts
from workers.engine_host.host import EngineHost
from workers.engine_metrics import engine_metrics

log = logging.getLogger(__name__)


class EngineAnswerer:
    """The `Answerer` of a GPU worker."""

    def __init__(self, host: EngineHost, make_parts: Callable[[EngineInfo], EngineParts], *, model: str) -> None:
        """`make_parts` is called with the engine's description once it is ready."""
        self._host = host
        self._make_parts = make_parts
        self._model = model
        self._parts: EngineParts | None = None
        self._counter: InputCounter | None = None
        self._engine = OWN_ENGINE

    def start(self, *, is_busy: Callable[[], bool]) -> int:
        info = self._host.start()
        self._parts = self._make_parts(info)
        self._engine = self._parts.engine
        self._counter = InputCounter(self._parts, model=self._model, is_busy=is_busy)
        self._counter.start()
        self._parts.adapters.start()
        log.info("engine ready device=%s dtype=%s products=%s", info.device, info.dtype, info.products)
        return info.max_model_len

    def open(self, claim: ClaimedChunk) -> EngineLines:
        assert self._parts is not None, "start() first"
        return EngineLines(claim, self._parts)

    def stats(self) -> Stats:
        engine = self._engine
        if self._parts is not None:
            engine = replace(engine, adapters=self._parts.adapters.usable)
        return Stats(metrics=engine_metrics(self._host.stats), running_lines=self._host.running_lines(), engine=engine)

    def drain(self) -> None:
        if self._counter is not None:
            self._counter.stop()
        if self._parts is not None:
            self._parts.adapters.stop()

    def close(self) -> None:
        if self._counter is not None:
            self._counter.join()
        self._host.close()
