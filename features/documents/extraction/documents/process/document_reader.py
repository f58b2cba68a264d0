"""Reads untrusted documents one after another: `with DocumentReader() as reader: reader.read(…)`.

Each is read in a process of its own. Not thread-safe: use one reader per thread.
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
    """Owns at most one warm process, which forks readers, from the first document until `close`, and one reader."""

    def __init__(self, limits: Limits | None = None, *, module: str = READER) -> None:
        """`module` is run by its process: the reader of files, or another one with other results."""
        self._limits = limits or Limits()
        self._module = module
        self._warm: WarmProcess | None = None
        self._process: ReadingProcess | None = None
        self._owner: str | None = None
        self.seconds = 0.0
        """Processor time for all documents, except attempts that were killed from outside."""
        self._last_seconds = 0.0
        self._before = 0.0  # processor time that the process used for its owner's earlier documents

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """The process that forks readers, or None; the readers end with it."""
        return self._warm.process_id if self._warm else None

    @property
    def parsers(self) -> str:
        """Names and versions of all readers: the same bytes with the same string give the same document."""
        return self._started().ready.decode()

    def read(self, content: bytes, name: str) -> Document:
        """Return a file as a document. Raises DocumentError; afterwards the next one can be read."""
        return Document.from_bytes(self.read_stored(content, name))

    def read_stored(self, content: bytes, name: str, *, owner: str | None = None) -> bytes:
        """Return the output of `Document.to_bytes`, without creating the document in this process.

        A process reads one document, or up to `documents_per_process` consecutive ones of one owner.
        """
        if len(content) > self._limits.max_bytes:
            message = f"{name} has {len(content)} bytes; the limit is {self._limits.max_bytes}. Split it"
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
        try:  # only a second death, in a new process, is blamed on the document
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
        except BaseException:  # never use this process for another document
            self._end_reader()
            raise
        finally:
            self._note_time(process, time.monotonic() - started)
        if owner is None or process.num_read >= self._limits.documents_per_process:
            self._end_reader()
        return stored

    def _note_time(self, process: ReadingProcess, by_clock: float) -> None:
        """Record the time spent on the last document, by the clock if the processor time is unknown."""
        used = process.processor_seconds()
        self._last_seconds = by_clock if used is None else used - self._before
        self._before = used or 0.0

    def _reader_for(self, owner: str | None, num_bytes: int) -> ReadingProcess:
        """Return the process that already reads for this owner, else a new one."""
        if self._process is not None and owner is not None and owner == self._owner:
            return self._process
        self._end_reader()
        limits = self._limits.of(num_bytes) if owner is None else self._limits
        self._process, self._owner, self._before = self._forked(limits), owner, 0.0
        return self._process

    def _forked(self, limits: Limits) -> ReadingProcess:
        """Return a new process. Raises ExtractionError if the warm process does not start."""
        try:
            return ReadingProcess.fork(self._started(), limits)
        except WarmProcessDiedError:  # it died after the previous document
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
