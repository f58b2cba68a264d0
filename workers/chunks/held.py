"""One claimed chunk from its start to its end, whatever answers its lines: its lease, its span, what the log tells.

Knows no line.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.telemetry.meters import Meters
from jobs.telemetry.traces import NO_TRACES, Traces
from workers.chunks.lease import Abandoned, ChunkLease
from workers.drain import Drain

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What chunks are read from and written to; those of one worker share it."""

    sessions: sessionmaker[Session]
    hold_sessions: sessionmaker[Session]
    """For leases and heartbeats alone, on connections of their own: they wait for nobody's flush."""
    storage: Storage
    settings: Settings
    drain: Drain
    meters: Meters
    traces: Traces = NO_TRACES
    monotonic: Callable[[], float] = time.monotonic


class HeldChunk(ABC):
    """One claim."""

    def __init__(self, claim: ClaimedChunk, services: Services) -> None:
        self._claim = claim
        self._traces = services.traces
        self._lease = ChunkLease(
            claim,
            sessions=services.sessions,
            hold_sessions=services.hold_sessions,
            settings=services.settings,
            meters=services.meters,
            traces=services.traces,
            monotonic=services.monotonic,
        )

    @abstractmethod
    def _work_off(self) -> None:
        """Write a result for every line, and leave none running. Raises Abandoned: the chunk was given back or lost."""

    def _close(self) -> None:
        """End the chunk, where its last flush has not."""
        if not self._lease.is_complete:
            self._lease.run(leasing.complete)

    def run(self) -> bool:
        """Return when the chunk is done, given back or lost: whether it is done."""
        claim = self._claim
        with self._traces.span(
            "chunk",
            parent=claim.trace_context,
            batch_id=claim.batch_id,
            chunk_id=claim.chunk_id,
            worker_id=claim.worker_id,
            claimed_by="turn" if claim.hint_waited is None else "hint",
        ) as span:
            if claim.hint_waited is not None:
                span.set(hint_waited_seconds=claim.hint_waited.total_seconds())
            self._lease.trace_context = span.context
            is_done = self._run()
            span.set(is_done=is_done, tokens=self._lease.num_tokens)
        return is_done

    def _run(self) -> bool:
        claim = self._claim
        log.info("chunk started chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
        try:
            self._work_off()
            self._close()
        except Abandoned as reason:
            log.warning("chunk abandoned chunk_id=%s fence=%s reason=%s", claim.chunk_id, claim.fence, reason)
            return False
        else:
            log.info("chunk closed chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
            return True
