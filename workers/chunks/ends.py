"""Whether a chunk goes on: holds its lease while its lines move, and ends it early where it must.

Early ends raise Abandoned, after what was finished is written and the chunk is given back. Knows no engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, Protocol, TypeVar

from sqlalchemy.orm import Session

from jobs.batches import missing_inputs
from jobs.chunks import leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.errors import NotFoundError, ServiceError
from jobs.settings import Settings
from jobs.storage import Storage
from workers.chunks.lease import Abandoned, ChunkLease
from workers.drain import Drain

STALL_SECONDS = 120.0
"""Work beside a lease that has not asked for so long whether it is wanted is taken for wedged: its lease is no longer
extended. A read of the object store ends before, whatever the store does."""

T = TypeVar("T")
Run = TypeVar("Run")
"""One line that runs, or has ended."""
Ended_contra = TypeVar("Ended_contra", contravariant=True)


class Lines(Protocol[Run]):
    """The lines of a chunk that run."""

    def drop_all(self) -> list[Run]:
        """Forget and abort every line, and return them."""

    def finished(self) -> Iterable[Run]:
        """Return the lines that have ended since they were last asked for."""


class Results(Protocol[Ended_contra]):
    """Results that are not yet written: as many as its `len`."""

    def __len__(self) -> int: ...

    @property
    def are_large(self) -> bool:
        """Tell whether they take so much memory that no more are even to be made."""

    def finish(self, run: Ended_contra) -> None:
        """Note what became of a line that has ended."""

    def write(self) -> None:
        """Write them."""


class ChunkEnds(Generic[Run]):
    """The lease of one open chunk and its two early ends: the worker drains, the batch is no longer wanted."""

    def __init__(
        self,
        *,
        lease: ChunkLease,
        lines: Lines[Run],
        results: Results[Run],
        settings: Settings,
        drain: Drain,
        is_wedged: Callable[[], bool],
        leave: Callable[[Session, ClaimedChunk, Sequence[Run]], None] = lambda session, claim, runs: None,
        monotonic: Callable[[], float],
    ) -> None:
        """`is_wedged` tells whether what runs the lines has been silent for too long.

        `leave` writes what the next worker may go on from, of the lines that were running.
        """
        self._lease = lease
        self._lines = lines
        self._results = results
        self._settings = settings
        self._drain = drain
        self._is_wedged = is_wedged
        self._leave = leave
        self._monotonic = monotonic

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
        if self._is_wedged():
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
        self._lines.drop_all()
        self._write_finished()
        self._lease.run(leasing.release)  # withdraws it, seeing the batch's state
        raise Abandoned("the batch was cancelled or has expired")

    def give_back_if_drained(self) -> None:
        """Give the rest back where the worker has no more time for it."""
        if self._drain.is_over:
            self.give_back()

    def give_back(self) -> None:
        """Return the rest of the chunk to the queue, with the output it has so far; not a loss."""
        unfinished = self._lines.drop_all()
        self._write_finished()
        self.end_if_unwanted()

        def leave(session: Session, claim: ClaimedChunk) -> None:
            self._leave(session, claim, unfinished)
            leasing.release(session, claim)

        self._lease.run(leave)
        raise Abandoned("the worker is stopping or was taken out; the rest was given back")

    def _write_finished(self) -> None:
        """Write what is held, and what has ended and waits to be made a result: it was computed, and is billed."""
        for run in self._lines.finished():
            self._results.finish(run)
            if self._results.are_large:
                self._results.write()
        if self._results:
            self._results.write()
