"""So many threads, each with confined processes of its own, that all chunks of a worker share.

Knows no line: whoever gives work to a thread says what it is. Processes that nobody needs for a while are ended.
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
"""How long a thread keeps its processes without work: each holds some 50 MB."""
_CUTTING_TIMES = 5
"""As long as a file may be read, its text may be cut: counting its tokens takes 3 to 10 s a million characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """What one thread works with."""

    files: DocumentReader = field(default_factory=DocumentReader)
    """Makes a stored document of a file's bytes."""
    answers: DocumentReader = field(default_factory=lambda: DocumentReader(module=GROUNDER))
    """Makes a record of what `grounding_child.packed` returns."""
    passages: DocumentReader = field(default_factory=lambda: DocumentReader(module=CUTTER))
    """Makes a segment of an index of what `cutting_child.packed` returns."""

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
        """End the processes from another thread than theirs."""
        for each in (self.files, self.answers, self.passages):
            if (process_id := each.process_id) is not None:
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)


Work = Callable[[Readers], None]
"""Raises nothing."""


class ReaderPool:
    """Gives work to its threads, tenants in turn. Safe to use from the threads of several chunks.

    A thread beside `num_threads` reads for a tenant of whom nothing is being read while those are all at work. It has
    processes only when that happens.
    """

    def __init__(self, num_threads: int, *, limits: Limits | None = None) -> None:
        self.num_threads = num_threads
        self.running = RunningCount()
        self._readers = [Readers.within(limits or Limits()) for _ in range(num_threads + 1)]
        self._turns: Turns[Work] = Turns(num_threads)
        # Daemons: what one of them still reads when the worker has drained keeps nobody from leaving.
        self._threads = [
            threading.Thread(
                target=self._serve, args=(readers, number == num_threads), name=f"read-{number}", daemon=True
            )
            for number, readers in enumerate(self._readers)
        ]

    def start(self) -> str:
        """Start the threads; return what files are read with. Raises ExtractionError where no process comes up."""
        parsers = self._readers[0].files.parsers
        for thread in self._threads:
            thread.start()
        return parsers

    def submit(self, work: Work, *, tenant_id: str) -> None:
        """Have a tenant's work done by whichever thread is free in its turn."""
        self._turns.put(tenant_id, work)

    @property
    def num_busy(self) -> int:
        """Return how many threads are at work."""
        return self._turns.num_under_way

    @property
    def num_waiting(self) -> int:
        """Return how much work no thread has begun."""
        return self._turns.num_waiting

    def close(self) -> None:
        """End all processes, those at work too."""
        self._turns.close()
        for readers in self._readers:
            readers.kill()

    def _serve(self, readers: Readers, is_spare: bool) -> None:
        while not self._turns.is_closed:
            taken = self._turns.take(is_spare=is_spare, timeout_seconds=IDLE_SECONDS)
            if taken is None:
                readers.close()
                continue
            tenant_id, work = taken
            work(readers)
            self._turns.done(tenant_id)
        readers.close()
