"""A pool of reader threads, each with its own confined processes, that all chunks of a worker share.

Idle processes are ended after a while.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from features.documents.extraction.course.cutting_child import MODULE as CUTTER
from features.documents.extraction.course.grounding_child import MODULE as GROUNDER
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.document_reader import DocumentReader
from workers.chunks.running import RunningCount
from workers.preparing.turns import Turns

IDLE_SECONDS = 60.0
"""How long an idle thread keeps its processes: each holds some 50 MB."""
_CUTTING_TIMES = 5
"""Time limit for cutting, as a multiple of that for reading: counting tokens takes 3 to 10 s per million characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The confined processes of one thread."""

    files: DocumentReader = field(default_factory=DocumentReader)
    """Turns a file's bytes into a stored document."""
    answers: DocumentReader = field(default_factory=lambda: DocumentReader(module=GROUNDER))
    """Turns the output of `grounding_child.packed` into a record."""
    passages: DocumentReader = field(default_factory=lambda: DocumentReader(module=CUTTER))
    """Turns the output of `cutting_child.packed` into a segment of an index."""

    @classmethod
    def within(cls, limits: Limits) -> Readers:
        return cls(
            files=DocumentReader(limits),
            answers=DocumentReader(limits.whole(), module=GROUNDER),
            passages=DocumentReader(replace(limits, seconds=_CUTTING_TIMES * limits.seconds).whole(), module=CUTTER),
        )

    @property
    def seconds(self) -> float:
        """Return the processor time of the processes."""
        return self.files.seconds + self.answers.seconds + self.passages.seconds

    def close(self) -> None:
        for each in (self.files, self.answers, self.passages):
            each.close()

    def kill(self) -> None:
        """Kill the processes from another thread than theirs."""
        for each in (self.files, self.answers, self.passages):
            if (process_id := each.process_id) is not None:
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)


Work = Callable[[Readers], None]
"""Must not raise."""


class ReaderPool:
    """Gives work to its threads, in turns between tenants. Safe to use from the threads of several chunks.

    One spare thread beyond `num_threads` reads for a tenant that has nothing in progress while all others are busy. It
    has processes only when that happens.
    """

    def __init__(self, num_threads: int, *, limits: Limits | None = None) -> None:
        self.num_threads = num_threads
        self.running = RunningCount()
        self._readers = [Readers.within(limits or Limits()) for _ in range(num_threads + 1)]
        self._turns: Turns[Work] = Turns(num_threads)
        # Daemons: a document that is still being read when the worker has drained does not delay its exit.
        self._threads = [
            threading.Thread(
                target=self._serve, args=(readers, number == num_threads), name=f"read-{number}", daemon=True
            )
            for number, readers in enumerate(self._readers)
        ]

    def start(self) -> str:
        """Start the threads; return the names and versions of the parsers. Raise ExtractionError if none starts."""
        parsers = self._readers[0].files.parsers
        for thread in self._threads:
            thread.start()
        return parsers

    def submit(self, work: Work, *, tenant_id: str) -> None:
        """Queue a tenant's work for the next free thread in its turn."""
        self._turns.put(tenant_id, work)

    @property
    def num_busy(self) -> int:
        """Return how many threads are busy."""
        return self._turns.num_under_way

    @property
    def num_waiting(self) -> int:
        """Return how much work has not been started."""
        return self._turns.num_waiting

    def close(self) -> None:
        """Kill all processes, busy ones too."""
        self._turns.close()
        for readers in self._readers:
            readers.kill()

    def _serve(self, readers: Readers, is_spare: bool) -> None:
        while not self._turns.is_closed:
            turn = self._turns.take(is_spare=is_spare, timeout_seconds=IDLE_SECONDS)
            if turn is None:
                readers.close()
                continue
            tenant_id, work = turn
            work(readers)
            self._turns.done(tenant_id)
        readers.close()
