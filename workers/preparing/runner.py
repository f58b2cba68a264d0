"""Answers the lines of claimed chunks with readers of documents. Knows no claim."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from features.documents.extraction.errors import ExtractionError
from jobs.chunks.fleet import RunningLines
from jobs.chunks.leasing import ClaimedChunk
from jobs.errors import ServiceError
from workers.drain import Drain
from workers.preparing.readers import ReaderPool
from workers.preparing.run import DocumentRun, PrepareParts

log = logging.getLogger(__name__)


class DocumentRunner:
    """The `Runner` of a prepare worker."""

    def __init__(self, pool: ReaderPool, make_parts: Callable[[str, Drain], PrepareParts]) -> None:
        """`make_parts` is called once a reader has said what files are read with."""
        self._pool = pool
        self._make_parts = make_parts
        self._parts: PrepareParts | None = None

    def start(self, drain: Drain, *, is_busy: Callable[[], bool]) -> int:
        try:
            parsers = self._pool.start()
        except ExtractionError as error:
            raise ServiceError(str(error)) from None
        log.info("readers ready processes=%s parsers=%s", self._pool.num_threads, parsers)
        self._parts = self._make_parts(parsers, drain)
        return 0

    def run(self, claim: ClaimedChunk) -> bool:
        assert self._parts is not None, "start() first"
        return DocumentRun(claim, self._parts).run()

    def metrics(self) -> Mapping[str, Any]:
        return {"num_requests_running": self._pool.num_busy, "num_requests_waiting": self._pool.num_waiting}

    def running_lines(self) -> Mapping[str, RunningLines]:
        return self._pool.running.by_batch()

    def begin_drain(self) -> None: ...

    def join(self) -> None: ...

    def close(self) -> None:
        self._pool.close()
