"""Reads documents one after the other, whatever is in them: `with DocumentReader() as reader: reader.read(…)`.

Knows when a process is worn and whom to blame for its death. Not for several threads: each has a reader of its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from extraction.documents.document import Document
from extraction.documents.limits import Limits
from extraction.documents.process.reading_process import READER, ReaderDiedError, ReadingProcess
from extraction.errors import DocumentCode, DocumentError


class DocumentReader:
    """Owns at most one process, from the first document on until `close`."""

    def __init__(self, limits: Limits | None = None, *, module: str = READER) -> None:
        """`module` is what its process runs: another one than the reader of files makes other things of bytes."""
        self._limits = limits or Limits()
        self._module = module
        self._process: ReadingProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def process_id(self) -> int | None:
        """The process that reads the next document, None where it will be a new one."""
        return self._process.process_id if self._process else None

    @property
    def rss_bytes(self) -> int:
        """What the process held after its last document."""
        return self._process.rss_bytes if self._process else 0

    @property
    def parsers(self) -> str:
        """Names and versions of all that reads: the same bytes under the same string give the same document."""
        return self._started().parsers

    def read(self, content: bytes, name: str) -> Document:
        """Return a file as a document. Raises DocumentError, after which the next one can be read."""
        return Document.from_bytes(self.read_stored(content, name))

    def read_stored(self, content: bytes, name: str) -> bytes:
        """Return what `Document.to_bytes` would, without making the document in this process."""
        if len(content) > self._limits.max_bytes:
            message = f"{name} has {len(content)} bytes, and {self._limits.max_bytes} are read; split it"
            raise DocumentError(DocumentCode.TOO_LARGE, message)
        try:
            return self._read(content, name)
        except ReaderDiedError as death:
            if death.was_first:
                raise death.error from None
        try:  # what was read before may have broken the process: blame is for those that die in a new one
            return self._read(content, name)
        except ReaderDiedError as death:
            raise death.error from None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _started(self) -> ReadingProcess:
        if self._process is None:
            self._process = ReadingProcess.start(self._limits, module=self._module)
        return self._process

    def _read(self, content: bytes, name: str) -> bytes:
        process = self._started()
        try:
            return process.read(content, name)
        except DocumentError as error:
            if error.code == DocumentCode.TIME_LIMIT:
                self.close()
            raise
        except BaseException:  # it has died, or an interrupt came and it is still at it
            self.close()
            raise
        finally:
            if process.is_worn:
                self.close()
