"""Whether a chunk goes on: holds its lease while the engine moves, and ends it early where it must.

Early ends raise Abandoned, after what was finished is written and the chunk is given back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from sqlalchemy.orm import Session

from jobs.chunks import checkpoints, leasing
from jobs.chunks.leasing import ClaimedChunk
from workers.chunks.engine_lines import EngineLines
from workers.chunks.lease import Abandoned, ChunkLease
from workers.chunks.parts import WorkerParts
from workers.chunks.results import ChunkResults
from workers.line_run import LineRun

STALL_SECONDS = 120.0
"""An engine silent for longer is taken for wedged, and so is work beside a lease that has not asked for so long whether
it is wanted: their leases are no longer extended. A read of the object store ends before, whatever the store does."""

T = TypeVar("T")


class ChunkEnds:
    """The lease of one open chunk and its two early ends: the worker drains, the batch is no longer wanted."""

    def __init__(self, parts: WorkerParts, *, lease: ChunkLease, lines: EngineLines, results: ChunkResults) -> None:
        self._parts = parts
        self._lease = lease
        self._lines = lines
        self._results = results

    def hold_lease_if_due(self) -> None:
        """Extend the lease between flushes, but only for an engine that moves: a wedged one must lose its work."""
        if self._lease.seconds_since_extended < self._parts.settings.heartbeat_seconds:
            return
        if self._parts.host.seconds_since_progress() > STALL_SECONDS:
            return
        self._lease.extend()
        self.end_if_unwanted()

    def hold_lease_during(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Do `work` in another thread, given what tells whether it is still wanted.

        While it asks, it moves: waiting for its turn behind others' lines is no stall. The lease is left to end where
        it asks no more and never comes back.
        """
        parts, executor = self._parts, ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside-lease")
        asked_at, is_over = parts.monotonic(), threading.Event()

        def is_wanted() -> bool:
            nonlocal asked_at
            asked_at = parts.monotonic()
            return not is_over.is_set()

        result = executor.submit(work, is_wanted)
        executor.shutdown(wait=False)  # once this is done; the lease may be lost before, and nobody waits for it then
        try:
            while not wait([result], timeout=parts.settings.heartbeat_seconds).done:
                if parts.monotonic() - asked_at <= STALL_SECONDS:
                    self.hold_lease_if_due()
                self.give_back_if_drained()
        finally:
            is_over.set()
        return result.result()

    def end_if_unwanted(self) -> None:
        """Where the batch was cancelled or has expired, keep what is finished and drop the rest."""
        if self._lease.is_batch_wanted:
            return
        self._lines.drop_all()
        if self._results:
            self._results.write()
        self._lease.run(leasing.release)  # withdraws it, seeing the batch's state
        raise Abandoned("the batch was cancelled or has expired")

    def give_back_if_drained(self) -> None:
        """Give the rest back where the worker has no more time for it."""
        if self._parts.drain.is_over:
            self.give_back()

    def give_back(self) -> None:
        """Return the rest of the chunk to the queue, with the output it has so far; not a loss."""
        unfinished = self._lines.drop_all()
        for run in self._lines.finished():
            self._results.finish(run)
        if self._results:
            self._results.write()
            self.end_if_unwanted()
        self._leave_for_another(unfinished)
        raise Abandoned("the worker is stopping; the rest was given back")

    def _leave_for_another(self, runs: Sequence[LineRun]) -> None:
        outputs = {run.prepared.line_no: tokens for run in runs if (tokens := run.checkpoint)}

        def leave(session: Session, claim: ClaimedChunk) -> None:
            checkpoints.save(session, claim, outputs, model_fingerprint=self._parts.model_fingerprint)
            leasing.release(session, claim)

        self._lease.run(leave)
