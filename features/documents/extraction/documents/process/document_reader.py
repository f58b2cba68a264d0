"""Reads documents one after the other, whatever is in them: `with DocumentReader() as reader: reader.read(…)`.

Each is read by a process of its own. Not for several threads: each has a reader of its own.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from confined.warm_process import WarmProcess, WarmProcessDiedError
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.reading_process import (
    READER,
    ReaderDiedError,
    ReadingProcess,
    start_warm,
)
from features.documents.extraction.errors import DocumentCode, DocumentError, ExtractionError


class DocumentReader:
    """Owns at most one process that forks readers, from the first document on until `close`, and one reader."""

    def __init__(self, limits: Limits | None = None, *, module: str = READER) -> None:
        """`module` is what its process runs: another one than the reader of files makes other things of bytes."""
        self._limits = limits or Limits()
        self._module = module
        self._warm: WarmProcess | None = None
        self._process: ReadingProcess | None = None
        self._owner: str | None = None
        self.seconds = 0.0
        """Of processor time, of all documents; tries that were killed from outside are left out."""
        self._last_seconds = 0.0
        self._before = 0.0  # of the process: what it has used for its owner's documents before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """The process that forks readers, None where there is none yet; they end with it."""
        return self._warm.process_id if self._warm else None

    @property
    def parsers(self) -> str:
        """Names and versions of all that reads: the same bytes under the same string give the same document."""
        return self._started().ready.decode()

    def read(self, content: bytes, name: str) -> Document:
        """Return a file as a document. Raises DocumentError, after which the next one can be read."""
        return Document.from_bytes(self.read_stored(content, name))

    def read_stored(self, content: bytes, name: str, *, owner: str | None = None) -> bytes:
        """Return what `Document.to_bytes` would, without making the document in this process.

        A process reads one document, or up to `documents_per_process` of one owner that come one after the other.
        """
        if len(content) > self._limits.max_bytes:
            message = f"{name} has {len(content)} bytes, and {self._limits.max_bytes} are read; split it"
            raise DocumentError(DocumentCode.TOO_LARGE, message)
        self._last_seconds = 0.0
        try:
            return self._read_for(content, name, owner)
        finally:
            self.seconds += self._last_seconds

    def _read_for(self, content: bytes, name: str, owner: str | None) -> bytes:
        try:
            return self._read(content, name, owner)
        except ReaderDiedError as death:
            if death.is_by_document:
                raise death.error from None
        try:  # blame is for those that die again, in a new process
            return self._read(content, name, owner)
        except ReaderDiedError as death:
            if not death.is_by_document:
                self._last_seconds = 0.0
            raise death.error from None

    def close(self) -> None:
        """End the processes."""
        self._end_reader()
        if self._warm is not None:
            self._warm.end()
            self._warm = None

    def _started(self) -> WarmProcess:
        if self._warm is None:
            self._warm = start_warm(self._module)
        return self._warm

    def _read(self, content: bytes, name: str, owner: str | None) -> bytes:
        process = self._reader_for(owner, len(content))
        started = time.monotonic()
        try:
            stored = process.read(content, name)
        except BaseException:  # whatever it was, no other document meets this process
            self._end_reader()
            raise
        finally:
            self._note_time(process, time.monotonic() - started)
        if owner is None or process.num_read >= self._limits.documents_per_process:
            self._end_reader()
        return stored

    def _note_time(self, process: ReadingProcess, by_clock: float) -> None:
        """Note how long a process has worked at the last document, by the clock where nobody tells its own time."""
        used = process.processor_seconds()
        self._last_seconds = by_clock if used is None else used - self._before
        self._before = used or 0.0

    def _reader_for(self, owner: str | None, num_bytes: int) -> ReadingProcess:
        """Return the process that reads for this owner already, else a new one."""
        if self._process is not None and owner is not None and owner == self._owner:
            return self._process
        self._end_reader()
        limits = self._limits.of(num_bytes) if owner is None else self._limits
        self._process, self._owner, self._before = self._forked(limits), owner, 0.0
        return self._process

    def _forked(self, limits: Limits) -> ReadingProcess:
        """Return a new process. Raises ExtractionError where what forks it does not come up."""
        try:
            return ReadingProcess.fork(self._started(), limits)
        except WarmProcessDiedError:  # since the document before
            self.close()
        try:
            return ReadingProcess.fork(self._started(), limits)
        except WarmProcessDiedError:
            self.close()
            raise ExtractionError("the process that reads documents ends as soon as it has started") from None

    def _end_reader(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
