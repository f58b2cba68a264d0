"""One process that reads, seen from its parent: started, asked file by file, ended.

Knows why such a process died, and nothing of what is done then.
"""

from __future__ import annotations

import signal
import time
from dataclasses import asdict, dataclass

import orjson

from confined.child_process import ChildDiedError, ChildProcess
from extraction.documents.limits import Limits
from extraction.documents.process.frames import HEAD, Kind, write_frame
from extraction.errors import DocumentCode, DocumentError, ExtractionError

READER = "extraction.documents.process.child"
_START_SECONDS = 120.0
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""One thread: others would take address space, and the kernel's filter holds for the first alone."""


class ReaderDiedError(Exception):
    """The process has ended while it read; `error` is for the document, should it be to blame: a first one is."""

    def __init__(self, error: DocumentError, *, was_first: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.was_first = was_first


@dataclass(slots=True)
class ReadingProcess:
    """Made by `start`; of no use after ReaderDiedError, nor after a DocumentError about time."""

    _child: ChildProcess
    _limits: Limits
    num_read: int = 0
    rss_bytes: int = 0
    parsers: str = ""
    _first_rss_bytes: int = 0
    _page: int | None = None

    @classmethod
    def start(cls, limits: Limits, *, module: str = READER) -> ReadingProcess:
        """Start one that runs `module`. Raises ExtractionError where it does not come up."""
        process = cls(ChildProcess.start(module, environment=_ENVIRONMENT), limits)
        process._send((Kind.SETTINGS, orjson.dumps(asdict(limits))))
        try:
            _, parsers = process._answer(time.monotonic() + _START_SECONDS)
        except (ReaderDiedError, TimeoutError):
            process.end()
            raise ExtractionError(
                "the process that reads documents did not start: install tokenmill[documents], "
                f"or see what `python -m {module}` says"
            ) from None
        process._first_rss_bytes = process.rss_bytes
        process.parsers = parsers.decode()
        return process

    @property
    def process_id(self) -> int:
        return self._child.process_id

    @property
    def is_worn(self) -> bool:
        """Tell whether another one should read the next document."""
        grown = self.rss_bytes - self._first_rss_bytes
        return self.num_read >= self._limits.documents_per_process or grown > self._limits.growth_bytes

    def read(self, content: bytes, name: str) -> bytes:
        """Return the stored document. Raises DocumentError, and ReaderDiedError where there was no answer."""
        self._page = None
        self._send((Kind.NAME, name.encode(errors="replace")), (Kind.CONTENT, content))
        try:
            kind, payload = self._answer(time.monotonic() + self._limits.seconds)
        except TimeoutError:
            message = f"reading it takes more than {self._limits.seconds:g} s; split it"
            raise DocumentError(DocumentCode.TIME_LIMIT, message, self._page) from None
        self.num_read += 1
        if kind is Kind.DOCUMENT:
            return payload
        said = orjson.loads(payload)
        raise DocumentError(DocumentCode(said["code"]), said["message"], said.get("page", self._page))

    def end(self) -> None:
        """End it, whatever it does."""
        self._child.end()

    def _send(self, *frames: tuple[Kind, bytes]) -> None:
        """Send frames. Where nobody is there to read them, `_answer` says so."""
        with self._child.writing() as stream:
            for kind, payload in frames:
                write_frame(stream, kind, payload)

    def _answer(self, give_up_at: float) -> tuple[Kind, bytes]:
        """Return the next frame that answers. Raises TimeoutError and ReaderDiedError."""
        while True:
            number, size = HEAD.unpack(self._take(HEAD.size, give_up_at))
            kind, payload = Kind(number), self._take(size, give_up_at)
            if kind is Kind.PAGE:
                self._page = int.from_bytes(payload, "little")
            elif kind is Kind.PICTURE:
                give_up_at += self._limits.seconds_per_picture
            elif kind is Kind.MEMORY:
                self.rss_bytes = int.from_bytes(payload, "little")
            else:
                return kind, payload

    def _take(self, size: int, give_up_at: float) -> bytes:
        try:
            return self._child.take(size, give_up_at)
        except ChildDiedError as death:
            raise ReaderDiedError(self._blamed(death), was_first=self.num_read == 0) from None

    def _blamed(self, death: ChildDiedError) -> DocumentError:
        if death.code == -signal.SIGABRT:  # how PDFium and Rust end where there is no memory
            return DocumentError(DocumentCode.MEMORY_LIMIT, self._limits.needs_memory(), self._page)
        return DocumentError(DocumentCode.PARSER_DIED, f"its parser died ({death})", self._page)
