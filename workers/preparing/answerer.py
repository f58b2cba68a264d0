"""Answers lines with document readers, which all chunks of a worker share."""

from __future__ import annotations

import logging
from collections.abc import Callable

from features.documents.extraction.errors import ExtractionError
from jobs.chunks.leasing import ClaimedChunk
from jobs.errors import ServiceError
from workers.chunks.answerer import Stats
from workers.preparing.lines import DocumentLines, PrepareParts
from workers.preparing.readers import ReaderPool

log = logging.getLogger(__name__)


class DocumentAnswerer:
    """The `Answerer` of a prepare worker."""

    def __init__(self, pool: ReaderPool, make_parts: Callable[[str], PrepareParts]) -> None:
        """`make_parts` is called with the names and versions of the parsers, once a reader has reported them."""
        self._pool = pool
        self._make_parts = make_parts
        self._parts: PrepareParts | None = None

    def start(self, *, is_busy: Callable[[], bool]) -> int:
        try:
            parsers = self._pool.start()
        except ExtractionError as error:
            raise ServiceError(str(error)) from None
        log.info("readers ready processes=%s parsers=%s", self._pool.num_threads, parsers)
        self._parts = self._make_parts(parsers)
        return 0

    def open(self, claim: ClaimedChunk) -> DocumentLines:
        assert self._parts is not None, "start() first"
        return DocumentLines(claim, self._parts)

    def stats(self) -> Stats:
        return Stats(
            metrics={"num_requests_running": self._pool.num_busy, "num_requests_waiting": self._pool.num_waiting},
            running_lines=self._pool.running.by_batch(),
        )

    def drain(self) -> None: ...

    def close(self) -> None:
        self._pool.close()
