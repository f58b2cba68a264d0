"""The process that reads: takes files one by one, says what became of each, ends with its parent.

Knows no path: bytes in, stored documents out. What else is done with bytes that strangers had a hand in can be served
the same way.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable
from typing import IO

import orjson
import psutil

from extraction.documents.limits import Limits, Progress
from extraction.documents.parsing import PARSERS, parse
from extraction.documents.process.confinement import confine
from extraction.documents.process.frames import Kind, read_frame, write_frame
from extraction.errors import DocumentCode, DocumentError

_GRACE_SECONDS = 5.0  # the parent ends a slow child first; alone it ends itself


Work = Callable[[bytes, str, Limits, Progress], bytes]
"""What is done with one content and its name. Raises DocumentError."""


def main() -> None:
    """Read the files of one parent."""
    serve(_read, PARSERS)


def serve(work: Work, said_when_ready: str) -> None:
    """Serve one parent over standard input and output, confined."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the parent's
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    limits = Limits(**orjson.loads(read_frame(source)))
    confine(limits.memory_bytes)
    process = psutil.Process()
    _say(answers, process, Kind.READY, said_when_ready.encode())
    while True:
        try:
            name, content = read_frame(source).decode(), read_frame(source)
        except EOFError:
            return
        kind, payload = _answer(work, content, name, limits, answers)
        del content
        gc.collect()
        _say(answers, process, kind, payload)


def _read(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    return parse(content, name, limits, progress=progress).to_bytes()


def _answer(work: Work, content: bytes, name: str, limits: Limits, answers: IO[bytes]) -> tuple[Kind, bytes]:
    """Return what the work made, or the error that there is instead."""
    signal.setitimer(signal.ITIMER_REAL, limits.seconds + _GRACE_SECONDS)
    try:
        return Kind.DOCUMENT, work(content, name, limits, _Told(answers, limits))
    except DocumentError as error:
        return Kind.ERROR, orjson.dumps({"code": error.code, "message": error.message, "page": error.page})
    except MemoryError:
        return Kind.ERROR, orjson.dumps({"code": DocumentCode.MEMORY_LIMIT, "message": limits.needs_memory()})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class _Told(Progress):
    """Tells the parent, and gives a picture its time."""

    def __init__(self, answers: IO[bytes], limits: Limits) -> None:
        self._answers = answers
        self._limits = limits

    def page(self, number: int) -> None:
        write_frame(self._answers, Kind.PAGE, number.to_bytes(8, "little"))

    def picture(self) -> None:
        write_frame(self._answers, Kind.PICTURE, b"")
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, left + self._limits.seconds_per_picture)


def _say(answers: IO[bytes], process: psutil.Process, kind: Kind, payload: bytes) -> None:
    write_frame(answers, Kind.MEMORY, process.memory_info().rss.to_bytes(8, "little"))
    write_frame(answers, kind, payload)


if __name__ == "__main__":
    main()
