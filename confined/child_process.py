"""A child process that runs a module, from its parent's side: start, feed, read, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from confined.pipes import Pipes

_ROOT = Path(__file__).resolve().parents[1]
_END_SECONDS = 5.0


class ChildDiedError(Exception):
    """The child has ended unexpectedly; `code` is its exit status, or the negative number of a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(signal.Signals(-code).name if code < 0 else f"exit status {code}")
        self.code = code


@dataclass(slots=True)
class ChildProcess:
    """Made by `start`; single-threaded, and unusable after `end`."""

    _popen: subprocess.Popen[bytes]
    _pipes: Pipes

    @classmethod
    def start(cls, module: str, *, environment: Mapping[str, str] | None = None) -> ChildProcess:
        """Start a module with `environment` alone; it finds the same modules as this process."""
        popen = started(module, environment=environment or {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return cls(popen, Pipes(sink=_own(popen.stdin), source=_own(popen.stdout)))

    @property
    def process_id(self) -> int:
        return self._popen.pid

    def give(self, *parts: bytes, give_up_at: float) -> None:
        """Write to it. Raises TimeoutError where it does not read in time; `take` reports that it has ended."""
        self._pipes.give(parts, give_up_at)

    def take(self, size: int, give_up_at: float) -> bytes:
        """Return the next bytes that it writes.

        Raises TimeoutError where they have not arrived by `give_up_at` (of time.monotonic), and ChildDiedError.
        """
        try:
            return self._pipes.take(size, give_up_at)
        except EOFError:
            raise ChildDiedError(exit_code(self._popen)) from None

    def end(self) -> None:
        """End it, whatever it does; idempotent."""
        self._popen.kill()
        self._popen.wait(_END_SECONDS)
        self._pipes.close()


def started(module: str, *, environment: Mapping[str, str], stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    """Start Python with a module and its own environment, without keys or URLs."""
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-m", module],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.DEVNULL,  # a dying library's output
        env={**_environment(), **environment},
        cwd="/",
    )


def exit_code(popen: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a process that has closed its output; kill it if it is still running."""
    try:
        return popen.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        popen.kill()
        return popen.wait(_END_SECONDS)


def _own(stream: IO[bytes] | None) -> int:
    """Detach the descriptor of a stream, which is closed."""
    assert stream is not None
    with stream:
        return os.dup(stream.fileno())


def _environment() -> dict[str, str]:
    places = [str(_ROOT), *(place or os.getcwd() for place in sys.path)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places)), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
