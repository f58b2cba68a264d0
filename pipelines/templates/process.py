"""One process that renders, seen from its parent: started with a prompt's parts, asked row by row, ended.

Knows why such a process died, and nothing of what is done then.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from pipelines.templates.frames import LENGTH, write_frame
from pipelines.templates.limits import Limits

_ROOT = Path(__file__).resolve().parents[2]
_READ_BYTES = 1 << 16
_END_SECONDS = 5.0

_OUT_OF_MEMORY = frozenset({signal.SIGABRT})
_NESTED_TOO_DEEPLY = frozenset({signal.SIGSEGV, signal.SIGBUS})


class RendererDiedError(Exception):
    """The process has ended; `is_by_row` tells whether what it was asked last is to blame, as far as can be told."""

    def __init__(self, reason: str, *, is_by_row: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_by_row = is_by_row


@dataclass(slots=True)
class RenderingProcess:
    """Made by `start`; of no use after RendererDiedError."""

    _popen: subprocess.Popen[bytes]
    _limits: Limits
    _rest: bytearray

    @classmethod
    def start(cls, parts: Sequence[str], limits: Limits) -> RenderingProcess:
        """Start one; it says first what it thinks of the parts."""
        popen = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", "pipelines.templates.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what a library says when it dies
            env=_environment(),
            cwd="/",
        )
        process = cls(popen, limits, bytearray())
        settings = {
            "parts": parts,
            "fuel": limits.fuel,
            "memory_bytes": limits.memory_bytes,
            "max_output_bytes": limits.max_output_bytes,
            "cpu_seconds": limits.cpu_seconds,
        }
        process.ask(orjson.dumps(settings))
        return process

    def ask(self, payload: bytes) -> None:
        """Send a frame. Where nobody is there to read it, `answer` says so."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            write_frame(self._popen.stdin, payload)

    def answer(self) -> dict[str, Any]:
        """Return the next frame. Raises RendererDiedError where there is none, or none in time."""
        size = LENGTH.unpack(self._read(LENGTH.size))[0]
        return cast(dict[str, Any], orjson.loads(self._read(size)))

    def end(self) -> None:
        """End it, whatever it does."""
        self._popen.kill()
        self._popen.wait(_END_SECONDS)
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _read(self, size: int) -> bytes:
        assert self._popen.stdout is not None
        descriptor = self._popen.stdout.fileno()
        give_up_at = time.monotonic() + self._limits.silence_seconds
        while len(self._rest) < size:
            left = give_up_at - time.monotonic()
            if left <= 0 or not _is_readable(descriptor, left):
                self.end()
                raise RendererDiedError(f"says nothing for {self._limits.silence_seconds:g} s", is_by_row=True)
            read = os.read(descriptor, _READ_BYTES)
            if not read:
                raise self._death()
            self._rest += read
        taken = bytes(self._rest[:size])
        del self._rest[:size]
        return taken

    def _death(self) -> RendererDiedError:
        code = self._popen.wait(_END_SECONDS)
        self.end()
        if -code in _OUT_OF_MEMORY:
            mib = self._limits.memory_bytes >> 20
            return RendererDiedError(f"needs more than {mib} MiB of memory", is_by_row=True)
        if -code in _NESTED_TOO_DEEPLY:
            return RendererDiedError("is nested too deeply", is_by_row=True)
        if -code == signal.SIGPROF:
            return RendererDiedError(f"takes more than {self._limits.cpu_seconds:g} s", is_by_row=True)
        return RendererDiedError(f"lost its process ({_ending(code)})", is_by_row=False)


def _is_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(seconds * 1000))


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _environment() -> dict[str, str]:
    """Let it find what this process finds, and know nothing else: no key and no URL."""
    places = [str(_ROOT), *(place or os.getcwd() for place in sys.path)]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(places)), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
