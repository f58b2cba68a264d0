"""The reading process: loaded once, it forks a child that reads one file, or several of one owner, and ends.

Other work on untrusted bytes is served the same way.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from functools import partial
from typing import IO

import orjson

from confined import warm_child
from confined.isolation import address_space_bytes, confine, widen_memory
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.parsing import PARSERS, parse
from features.documents.extraction.documents.process import rehearsal
from features.documents.extraction.documents.process.frames import Kind, read_frame, write_frame
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.errors import DocumentCode, DocumentError

_GRACE_SECONDS = 5.0  # the parent ends a slow child before; without a parent it ends itself
_NUM_REHEARSALS = 10  # Python specializes code that has run some times


Work = Callable[[bytes, str, Limits, Progress], bytes]
"""Work on a content with its name. Raises DocumentError."""


def main() -> None:
    """Serve a parent that reads files."""
    ocr.load()
    rehearse()
    serve(_read, PARSERS)


def rehearse() -> None:
    """Read small files of every format, so that forks share what first readings load, specialize and cache."""
    for name, content in rehearsal.files().items():
        for _ in range(_NUM_REHEARSALS):
            _answer(_read, content, name, Limits(), io.BytesIO())


def serve(work: Work, ready_message: str) -> None:
    """Fork for a parent, and do the work in each confined fork."""
    warm_child.serve(ready_message.encode(), partial(_serve, work, address_space_bytes()))


def _serve(work: Work, loaded_bytes: int, source: IO[bytes], answers: IO[bytes], parent_id: int) -> None:
    limits = Limits(**orjson.loads(read_frame(source)))
    at_first_bytes = loaded_bytes + limits.base_memory_bytes
    confine(limits.memory_bytes, parent_id=parent_id, at_first_bytes=at_first_bytes)
    while True:
        try:
            name, content = read_frame(source).decode(), read_frame(source)
        except EOFError:
            return
        kind, payload = _answer(work, content, name, limits, answers)
        del content
        write_frame(answers, kind, payload)


def _read(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    return parse(content, name, limits, progress=progress).to_bytes()


def _answer(work: Work, content: bytes, name: str, limits: Limits, answers: IO[bytes]) -> tuple[Kind, bytes]:
    """Return the result of the work, or its error."""
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)  # ends the process even inside a parser
    signal.setitimer(signal.ITIMER_REAL, limits.clock_seconds + _GRACE_SECONDS)
    try:
        return Kind.DOCUMENT, work(content, name, limits, _Reporter(answers, limits))
    except DocumentError as error:
        return Kind.ERROR, orjson.dumps({"code": error.code, "message": error.message, "page": error.page})
    except MemoryError:
        return Kind.ERROR, orjson.dumps({"code": DocumentCode.MEMORY_LIMIT, "message": limits.needs_memory()})
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)


class _Reporter(Progress):
    """Reports progress to the parent, and extends time and memory for pictures."""

    def __init__(self, answers: IO[bytes], limits: Limits) -> None:
        self._answers = answers
        self._limits = limits

    def page(self, number: int) -> None:
        write_frame(self._answers, Kind.PAGE, number.to_bytes(8, "little"))

    def picture(self) -> None:
        write_frame(self._answers, Kind.PICTURE, b"")
        widen_memory()
        more = self._limits.seconds_per_picture
        for timer, seconds in ((signal.ITIMER_PROF, more), (signal.ITIMER_REAL, more * self._limits.times_by_clock)):
            left, _ = signal.getitimer(timer)
            signal.setitimer(timer, left + seconds)


if __name__ == "__main__":
    main()
