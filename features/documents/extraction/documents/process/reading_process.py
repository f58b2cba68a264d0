"""Parent's side of a reading process: fork, send files, receive answers, end.

The files may have taken it over, so its answers are not trusted in form, size or end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from confined.child_process import ChildDiedError
from confined.warm_process import ForkedProcess, WarmProcess, WarmProcessDiedError
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.process.frames import HEAD, Kind, frame
from features.documents.extraction.errors import DocumentCode, DocumentError, ExtractionError

READER = "features.documents.extraction.documents.process.child"
_START_SECONDS = 120.0
_SEND_SECONDS = 30.0
"""Time limit for sending, beyond the time that a file may take."""
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""One thread: more would take address space, and a fork does not inherit running threads."""


class ReaderDiedError(Exception):
    """The process has ended while reading; `error` is for the document if it is to blame.

    It is not if the process had read another document before, or was killed from outside.
    """

    def __init__(self, error: DocumentError, *, is_by_document: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.is_by_document = is_by_document


def start_warm(module: str) -> WarmProcess:
    """Start the process that forks readers. Raises ExtractionError if it does not come up."""
    try:
        return WarmProcess.start(module, environment=_ENVIRONMENT, give_up_at=time.monotonic() + _START_SECONDS)
    except WarmProcessDiedError:
        raise ExtractionError(
            "the process that reads documents did not start: install tokenmill[documents], "
            f"or see what `python -m {module} </dev/null` says"
        ) from None


@dataclass(slots=True)
class ReadingProcess:
    """Unusable after ReaderDiedError, and after a DocumentError about time."""

    _forked: ForkedProcess
    _limits: Limits
    num_read: int = 0
    _page: int | None = None
    _num_pictures: int = 0

    @classmethod
    def fork(cls, warm: WarmProcess, limits: Limits) -> ReadingProcess:
        """Return a process that has not read anything yet. Raises WarmProcessDiedError."""
        process = cls(warm.fork(), limits)
        process._give(time.monotonic() + _SEND_SECONDS, (Kind.SETTINGS, orjson.dumps(asdict(limits))))
        return process

    def read(self, content: bytes, name: str) -> bytes:
        """Return the stored document. Raises DocumentError, and ReaderDiedError if there was no answer."""
        self._page, self._num_pictures = None, 0
        started = time.monotonic()
        try:
            named = (Kind.NAME, name.encode(errors="replace"))
            self._give(started + _SEND_SECONDS + self._limits.clock_seconds, named, (Kind.CONTENT, content))
            kind, payload = self._answer(time.monotonic() + self._limits.clock_seconds)
        except TimeoutError:
            raise self._too_slow() from None
        self.num_read += 1
        if kind is Kind.DOCUMENT:
            return payload
        raise self._refusal(payload)

    def end(self) -> None:
        """End the process in any state."""
        self._forked.end()

    def processor_seconds(self) -> float | None:
        """Return its processor time so far, also after its end; None if unknown."""
        return self._forked.processor_seconds()

    def _give(self, give_up_at: float, *frames: tuple[Kind, bytes]) -> None:
        """Send frames. If nobody reads them, `_answer` reports it."""
        self._forked.give(*(part for each in frames for part in frame(*each)), give_up_at=give_up_at)

    def _answer(self, give_up_at: float) -> tuple[Kind, bytes]:
        """Return the next frame with an answer. Raises TimeoutError and ReaderDiedError."""
        while True:
            number, size = HEAD.unpack(self._take(HEAD.size, give_up_at))
            if size > self._limits.memory_bytes:
                raise self._nonsense()
            payload = self._take(size, give_up_at)
            if number == Kind.PAGE:
                self._page = int.from_bytes(payload[:8], "little")
            elif number == Kind.PICTURE:
                give_up_at += self._limits.seconds_per_picture * self._limits.times_by_clock
                self._num_pictures += 1
            if number in (Kind.DOCUMENT, Kind.ERROR):
                return Kind(number), payload
            if number not in (Kind.PAGE, Kind.PICTURE) or self._num_pictures > self._limits.max_pages:
                raise self._nonsense()

    def _refusal(self, payload: bytes) -> DocumentError:
        """Return the error in an answer."""
        try:
            content: Mapping[str, Any] = orjson.loads(payload)
            page = content.get("page", self._page)
            return DocumentError(
                DocumentCode(content["code"]), str(content["message"]), None if page is None else int(page)
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._nonsense().error

    def _take(self, size: int, give_up_at: float) -> bytes:
        try:
            return self._forked.take(size, give_up_at)
        except ChildDiedError as death:
            is_killed = death.code == -signal.SIGKILL
            is_by_document = death.code == -signal.SIGPROF or (self.num_read == 0 and not is_killed)
            raise ReaderDiedError(self._blamed(death), is_by_document=is_by_document) from None
        except WarmProcessDiedError:  # killed from outside, perhaps for lack of memory
            error = DocumentError(DocumentCode.PARSER_DIED, "its parser died", self._page)
            raise ReaderDiedError(error, is_by_document=False) from None

    def _too_slow(self) -> DocumentError:
        return DocumentError(DocumentCode.TIME_LIMIT, self._limits.needs_time(), self._page)

    def _nonsense(self) -> ReaderDiedError:
        error = DocumentError(DocumentCode.PARSER_DIED, "its parser gave an invalid answer", self._page)
        return ReaderDiedError(error, is_by_document=True)

    def _blamed(self, death: ChildDiedError) -> DocumentError:
        if death.code == -signal.SIGABRT:  # PDFium and Rust abort without memory
            return DocumentError(DocumentCode.MEMORY_LIMIT, self._limits.needs_memory(), self._page)
        if death.code == -signal.SIGPROF:  # processor time exceeded
            return self._too_slow()
        return DocumentError(DocumentCode.PARSER_DIED, f"its parser died ({death})", self._page)
