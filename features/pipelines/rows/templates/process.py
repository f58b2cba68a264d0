"""The parent's side of a rendering process: forks it with a prompt's parts, sends rows, ends it.

It reports why such a process died; the caller decides what to do.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from confined.child_process import ChildDiedError
from confined.warm_process import WarmProcessDiedError
from features.pipelines.rows.templates.frames import LENGTH
from features.pipelines.rows.templates.limits import Limits
from features.pipelines.rows.templates.warm import RENDERERS, WarmFork

_OUT_OF_MEMORY = frozenset({signal.SIGABRT})
_NESTED_TOO_DEEPLY = frozenset({signal.SIGSEGV, signal.SIGBUS})
_LOOK_SECONDS = 0.25
"""Interval of calls of `waits` while an answer is awaited."""


class RendererDiedError(Exception):
    """The process has ended; `is_by_row` tells whether the last row probably caused it."""

    def __init__(self, reason: str, *, is_by_row: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_by_row = is_by_row


@dataclass(slots=True)
class RenderingProcess:
    """A rendering process, created by `start`; unusable after RendererDiedError."""

    _fork: WarmFork
    _limits: Limits
    _waits: Callable[[], None]
    _asked_at: float = 0.0
    _cpu_seconds: float = 0.0
    _counted_seconds: float = 0.0

    @classmethod
    def start(
        cls, parts: Sequence[str], limits: Limits, *, waits: Callable[[], None] = lambda: None
    ) -> RenderingProcess:
        """Start a process; its first answer is the check of the parts. `waits` is called periodically meanwhile.

        Raise RendererDiedError.
        """
        process = cls(_forked(), limits, waits)
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
        """Send a frame. Raise RendererDiedError on a timeout; if the process is dead, `answer` raises it."""
        self._asked_at = time.monotonic()
        try:
            self._fork.process.give(
                LENGTH.pack(len(payload)), payload, give_up_at=time.monotonic() + self._limits.silence_seconds
            )
        except TimeoutError:
            raise self._silence() from None

    def answer(self) -> dict[str, Any]:
        """Return the next frame. Raise RendererDiedError if there is none, or on a timeout."""
        size = LENGTH.unpack(self._take(LENGTH.size))[0]
        frame = cast(dict[str, Any], orjson.loads(self._take(size)))
        self._cpu_seconds = frame.get("cpu_seconds", self._cpu_seconds)
        self._asked_at = time.monotonic()
        return frame

    def newly_used(self) -> float:
        """Return the CPU seconds used since the last call."""
        new = self._cpu_seconds - self._counted_seconds
        self._counted_seconds = self._cpu_seconds
        return new

    def end(self) -> None:
        """Kill the process; idempotent."""
        self._fork.end()

    def _take(self, size: int) -> bytes:
        give_up_at = time.monotonic() + self._limits.silence_seconds
        while True:
            try:
                return self._fork.process.take(size, min(give_up_at, time.monotonic() + _LOOK_SECONDS))
            except TimeoutError:
                if time.monotonic() >= give_up_at:
                    raise self._silence() from None
            except ChildDiedError as death:
                self._note_end()
                raise self._death(death) from None
            except WarmProcessDiedError:  # killed from outside, and the fork with it
                self._note_end()
                raise _lost("its parent ended") from None
            self._waits()

    def _note_end(self) -> None:
        """Count the CPU time of its last row, which it cannot report: at most the elapsed time or its limit."""
        self.end()
        self._cpu_seconds += min(self._limits.cpu_seconds, time.monotonic() - self._asked_at)

    def _silence(self) -> RendererDiedError:
        self._note_end()
        return RendererDiedError(f"says nothing for {self._limits.silence_seconds:g} s", is_by_row=True)

    def _death(self, death: ChildDiedError) -> RendererDiedError:
        if -death.code in _OUT_OF_MEMORY:
            mib = self._limits.memory_bytes >> 20
            return RendererDiedError(f"needs more than {mib} MiB of memory", is_by_row=True)
        if -death.code in _NESTED_TOO_DEEPLY:
            return RendererDiedError("is nested too deeply", is_by_row=True)
        if -death.code == signal.SIGPROF:
            return RendererDiedError(f"takes more than {self._limits.cpu_seconds:g} s", is_by_row=True)
        return _lost(str(death))


def _forked() -> WarmFork:
    try:
        return RENDERERS.fork()
    except WarmProcessDiedError:
        raise _lost("it did not start") from None


def _lost(reason: str) -> RendererDiedError:
    return RendererDiedError(f"lost its process ({reason})", is_by_row=False)
