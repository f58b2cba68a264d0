"""One such process, seen from its parent: started, fed, listened to, ended.

Knows bytes, and no message.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_ROOT = Path(__file__).resolve().parents[1]
_READ_BYTES = 1 << 20
_END_SECONDS = 5.0


class ChildDiedError(Exception):
    """It has ended while something was expected of it; `code` is its exit status, or below 0 that of a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(signal.Signals(-code).name if code < 0 else f"exit status {code}")
        self.code = code


@dataclass(slots=True)
class ChildProcess:
    """Made by `start`; for one thread, and of no use after `end`."""

    _popen: subprocess.Popen[bytes]
    _rest: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(cls, module: str, *, environment: Mapping[str, str] | None = None) -> ChildProcess:
        """Start a module; it finds what this process finds, and knows `environment` besides: no key and no URL."""
        popen = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what a library says when it dies
            env={**_environment(), **(environment or {})},
            cwd="/",
        )
        return cls(popen)

    @property
    def process_id(self) -> int:
        return self._popen.pid

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Yield where to write to it. That nobody is there to read it, `take` says."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            yield self._popen.stdin

    def take(self, size: int, give_up_at: float) -> bytes:
        """Return the next bytes that it writes.

        Raises TimeoutError where they have not come by `give_up_at` (of time.monotonic), and ChildDiedError.
        """
        assert self._popen.stdout is not None
        descriptor = self._popen.stdout.fileno()
        while len(self._rest) < size:
            left = give_up_at - time.monotonic()
            if left <= 0 or not _is_readable(descriptor, left):
                raise TimeoutError
            read = os.read(descriptor, _READ_BYTES)
            if not read:
                raise ChildDiedError(self._popen.wait(_END_SECONDS))
            self._rest += read
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    def end(self) -> None:
        """End it, whatever it does."""
        self._popen.kill()
        self._popen.wait(_END_SECONDS)
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(seconds * 1000))


def _environment() -> dict[str, str]:
    places = [str(_ROOT), *(place or os.getcwd() for place in sys.path)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places)), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
