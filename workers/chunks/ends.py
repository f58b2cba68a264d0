"""Whether a chunk goes on: holds its lease while its lines move, and ends it early where it must.

Early ends raise Abandoned, after what was finished is written and the chunk is given back. Knows no answerer.
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
"""Work beside a lease that has not asked for so long whether it is wanted is taken for wedged: its lease is no longer
extended. A read of the object store ends before, whatever the store does."""

T = TypeVar("T")


class ChunkEnds:
    """The lease of one open chunk and its early ends: the worker drains, the batch is unwanted, a service is away."""

    def __init__(self, chunk: OpenChunk[Any], results: ChunkResults[Any]) -> None:
        self._lease = chunk.lease
        self._lines = chunk.lines
        self._submitted = chunk.submitted
        self._results = results
        self._settings = chunk.settings
        self._drain = chunk.services.drain
        self._monotonic = chunk.services.monotonic

    def read_content(self, claim: ClaimedChunk, storage: Storage) -> bytes:
        """Return the chunk's lines, the lease held meanwhile. Raises Abandoned, the batch put off or failed."""
        try:
            content = self.hold_lease_during(lambda _is_wanted: claim.read(storage))
        except ServiceError as error:
            # Given back and not left to expire: a store that is away must not count as a loss of these lines.
            self._lease.run(missing_inputs.wait_for_store)
            raise Abandoned(str(error)) from None
        except NotFoundError as error:
            self._lease.run(missing_inputs.miss)
            raise Abandoned(str(error)) from None
        if claim.input_missed_at is not None:
            self._lease.run(lambda session, claimed: missing_inputs.find_again(session, claimed.batch_id))
        return content

    def hold_lease_if_due(self) -> None:
        """Extend the lease between flushes, but only while the lines move: what is wedged must lose its work."""
        if self._lease.seconds_since_extended < self._settings.heartbeat_seconds:
            return
        if self._lines.is_wedged:
            return
        self._lease.extend()
        self.end_if_unwanted()

    def hold_lease_during(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Do `work` in another thread, given what tells whether it is still wanted.

        While it asks, it moves: waiting for its turn behind others' lines is no stall. The lease is left to end where
        it asks no more and never comes back.
        """
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="beside-lease")
        asked_at, is_over = self._monotonic(), threading.Event()

        def is_wanted() -> bool:
            nonlocal asked_at
            asked_at = self._monotonic()
            return not is_over.is_set()

        result = executor.submit(work, is_wanted)
        executor.shutdown(wait=False)  # once this is done; the lease may be lost before, and nobody waits for it then
        try:
            while not wait([result], timeout=self._settings.heartbeat_seconds).done:
                if self._monotonic() - asked_at <= STALL_SECONDS:
                    self.hold_lease_if_due()
                self.give_back_if_drained()
        finally:
            is_over.set()
        return result.result()

    def end_if_unwanted(self) -> None:
        """Where the batch was cancelled or has expired, keep what is finished and drop the rest."""
        if self._lease.is_batch_wanted:
            return
        self._submitted.drop_all()
        self._write_finished()
        self._lease.run(leasing.release)  # withdraws it, seeing the batch's state
        raise Abandoned("the batch was cancelled or has expired")

    def give_back_if_drained(self) -> None:
        """Give the rest back where the worker has no more time for it."""
        if self._drain.is_over:
            self._give_back("the worker is stopping or was taken out; the rest was given back")

    def give_back_if_away(self) -> None:
        """Give the rest back where a service does not answer, which is no fault of the lines; a moment later."""
        if self._results.away is not None:
            self._give_back(str(self._results.away), pause_seconds=RETRY_SECONDS)

    def _give_back(self, reason: str, *, pause_seconds: float = 0.0) -> None:
        """Return the rest of the chunk to the queue, with the output it has so far; not a loss."""
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
        """Write what is held, and what has ended and waits to be made a result: it was computed, and is billed."""
        for ended in self._submitted.ended():
            self._results.finish(ended)
            if self._results.are_large:
                self._results.write()
        if self._results:
            self._results.write()
