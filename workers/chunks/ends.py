"""The lease and early ends of a running chunk: extends the lease while its lines make progress, ends it when it must.

Early ends raise Abandoned, after finished results are written and the chunk is released.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from jobs.batches import missing_inputs
from jobs.chunks import checkpoints, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.errors import NotFoundError, ServiceError
from jobs.storage import Storage
from workers.chunks.lease import RETRY_SECONDS, Abandoned
from workers.chunks.open_chunk import OpenChunk
from workers.chunks.results import ChunkResults

STALL_SECONDS = 120.0
"""Work in another thread that has not called `is_wanted` for this long is considered wedged, and its lease is no longer
extended. A read of the object store times out earlier."""

T = TypeVar("T")


class ChunkEnds:
    """The lease of one open chunk and its early ends: the worker drains, the batch has ended, a service is down."""

    def __init__(self, chunk: OpenChunk[Any], results: ChunkResults[Any]) -> None:
        self._lease = chunk.lease
        self._lines = chunk.lines
        self._submitted = chunk.submitted
        self._results = results
        self._settings = chunk.settings
        self._drain = chunk.services.drain
        self._monotonic = chunk.services.monotonic

    def read_content(self, claim: ClaimedChunk, storage: Storage) -> bytes:
        """Return the chunk's lines while holding the lease. Raise Abandoned after putting off or failing the batch."""
        try:
            content = self.hold_lease_during(lambda _is_wanted: claim.read(storage))
        except ServiceError as error:
            # Released, not left to expire: an unreachable store must not count as a loss of these lines.
            self._lease.run(missing_inputs.wait_for_store)
            raise Abandoned(str(error)) from None
        except NotFoundError as error:
            self._lease.run(missing_inputs.miss)
            raise Abandoned(str(error)) from None
        if claim.input_missed_at is not None:
            self._lease.run(lambda session, claimed: missing_inputs.find_again(session, claimed.batch_id))
        return content

    def hold_lease_if_due(self) -> None:
        """Extend the lease between flushes, but only while the lines make progress: a wedged worker must lose it."""
        if self._lease.seconds_since_extended < self._settings.heartbeat_seconds:
            return
        if self._lines.is_wedged:
            return
        self._lease.extend()
        self.end_if_unwanted()

    def hold_lease_during(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Run `work` in another thread, with a function that tells whether it is still wanted.

        As long as it calls that function it makes progress, also while it waits for its turn behind others' lines. If
        it stops calling and does not return, the lease is left to expire.
        """
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside-lease")
        asked_at, is_over = self._monotonic(), threading.Event()

        def is_wanted() -> bool:
            nonlocal asked_at
            asked_at = self._monotonic()
            return not is_over.is_set()

        result = executor.submit(work, is_wanted)
        executor.shutdown(wait=False)  # when the work is done; if the lease is lost before, nothing waits for it
        try:
            while not wait([result], timeout=self._settings.heartbeat_seconds).done:
                if self._monotonic() - asked_at <= STALL_SECONDS:
                    self.hold_lease_if_due()
                self.give_back_if_drained()
        finally:
            is_over.set()
        return result.result()

    def end_if_unwanted(self) -> None:
        """If the batch was cancelled or has expired, write what is finished and drop the rest."""
        if self._lease.is_batch_wanted:
            return
        self._submitted.drop_all()
        self._write_finished()
        self._lease.run(leasing.release)  # withdraws it, seeing the batch's state
        raise Abandoned("the batch was cancelled or has expired")

    def give_back_if_drained(self) -> None:
        """Release the rest if the worker has no more time for it."""
        if self._drain.is_over:
            self._give_back("the worker is stopping or was taken out; the rest was given back")

    def give_back_if_away(self) -> None:
        """Release the rest, after a pause, if a service does not answer, which is not the lines' fault."""
        if self._results.away is not None:
            self._give_back(str(self._results.away), pause_seconds=RETRY_SECONDS)

    def leave_to_other_engine(self, reason: str) -> None:
        """Release the chunk without results, as its batch has answers of another engine; what they cost is written."""
        self._submitted.drop_all()
        for ended in self._submitted.ended():
            self._results.finish(ended)
            self._results.throw_away()
        self._results.throw_away()
        self._results.write_all()
        self._lease.run(leasing.release)
        raise Abandoned(reason)

    def _give_back(self, reason: str, *, pause_seconds: float = 0.0) -> None:
        """Return the rest of the chunk to the queue, with its output so far; this does not count as a loss."""
        outputs = self._submitted.drop_all()
        self._write_finished()
        self.end_if_unwanted()
        time.sleep(pause_seconds)

        def release(session: Session, claim: ClaimedChunk) -> None:
            if self._lines.fingerprint is not None:
                checkpoints.save(session, claim, outputs, model_fingerprint=self._lines.fingerprint)
            leasing.release(session, claim)

        self._lease.run(release)
        raise Abandoned(reason)

    def _write_finished(self) -> None:
        """Write the held results and those of ended lines: they were computed, and are billed.

        Also what was paid without a result.
        """
        for ended in self._submitted.ended():
            self._results.finish(ended)
            if self._results.are_large:
                self._results.write()
        self._results.write_all()
