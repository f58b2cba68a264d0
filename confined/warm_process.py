"""A process with loaded modules that forks others, from its parent's side: each fork is fed, and ended.

It has an environment of its own and receives only requests to fork, so its forks have nothing else either.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from confined.child_process import ChildDiedError, exit_code, started
from confined.pipes import Pipes
from confined.warm_words import CODE, END, FORK, MICROSECONDS, SIZE, TIME

_ANSWER_SECONDS = 30.0
"""Time limit for ending its forks: it does nothing else."""


class WarmProcessDiedError(Exception):
    """The warm process has ended, or does not answer; this says nothing about the input of a fork."""


@dataclass(slots=True)
class WarmProcess:
    """Made by `start`; single-threaded, one fork at a time, and unusable after `end`."""

    _popen: subprocess.Popen[bytes]
    _control: socket.socket
    ready: bytes = b""
    """The message of the process when it is ready."""
    fork_seconds: float | None = None
    """Processor time of the last ended fork."""
    _owes_code: bool = False

    @classmethod
    def start(cls, module: str, *, environment: Mapping[str, str], give_up_at: float) -> WarmProcess:
        """Start a module that calls `confined.warm_child.serve`. Raises WarmProcessDiedError where it fails."""
        ours, theirs = socket.socketpair()
        with theirs:
            popen = started(module, environment=environment, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        warm = cls(popen, ours)
        try:
            (size,) = struct.unpack(SIZE.format, warm._take(SIZE.size, give_up_at))
            warm.ready = warm._take(size, give_up_at)
        except BaseException:
            warm.end()
            raise
        return warm

    @property
    def process_id(self) -> int:
        return self._popen.pid

    def fork(self) -> ForkedProcess:
        """Return a new fork; the previous one has ended. Raises WarmProcessDiedError."""
        self.settle()
        source, their_sink = os.pipe()
        their_source, sink = os.pipe()
        pipes = Pipes(sink=sink, source=source)
        try:
            socket.send_fds(self._control, [FORK], [their_source, their_sink])
        except OSError:
            pipes.close()
            raise WarmProcessDiedError from None
        finally:
            os.close(their_source)
            os.close(their_sink)
        return ForkedProcess(self, pipes)

    def ask_to_end_fork(self) -> None:
        """Request the end of the fork, without waiting for it."""
        with suppress(OSError):
            self._control.sendall(END)
        self._owes_code = True

    def settle(self) -> int | None:
        """Wait for the requested end of the fork; return its exit code. Raises WarmProcessDiedError."""
        if not self._owes_code:
            return None
        code, microseconds = CODE.unpack(self._take(CODE.size, time.monotonic() + _ANSWER_SECONDS))
        self.fork_seconds = microseconds / 1e6
        self._owes_code = False
        return int(code)

    def ask_time(self) -> float | None:
        """Return the processor time of the running fork; None where the system does not report it.

        Raises WarmProcessDiedError.
        """
        try:
            self._control.sendall(TIME)
        except OSError:
            raise WarmProcessDiedError from None
        answer = self._take(MICROSECONDS.size, time.monotonic() + _ANSWER_SECONDS)
        (microseconds,) = MICROSECONDS.unpack(answer)
        return None if microseconds < 0 else microseconds / 1e6

    def end(self) -> None:
        """End it and its fork; the process itself waits for the fork, as nobody else may."""
        self._control.close()
        exit_code(self._popen)

    def _take(self, size: int, give_up_at: float) -> bytes:
        """Return bytes that it sends."""
        content = b""
        try:
            while len(content) < size:
                self._control.settimeout(max(0.001, give_up_at - time.monotonic()))
                read = self._control.recv(size - len(content))
                if not read:
                    raise WarmProcessDiedError
                content += read
        except OSError:  # timeouts included
            raise WarmProcessDiedError from None
        self._control.settimeout(None)
        return content


@dataclass(slots=True)
class ForkedProcess:
    """Made by `WarmProcess.fork`, for its thread; unusable after `end`."""

    _warm: WarmProcess
    _pipes: Pipes
    _is_asked_to_end: bool = False

    def give(self, *parts: bytes, give_up_at: float) -> None:
        """Write to it. Raises TimeoutError where it does not read in time; `take` reports that it has ended."""
        self._pipes.give(parts, give_up_at)

    def take(self, size: int, give_up_at: float) -> bytes:
        """Return the next bytes that it writes. Raises TimeoutError, ChildDiedError and WarmProcessDiedError."""
        try:
            return self._pipes.take(size, give_up_at)
        except EOFError:
            self._ask_to_end()
            code = self._warm.settle()
            assert code is not None, "it was asked to end"
            raise ChildDiedError(code) from None

    def end(self) -> None:
        """End it, whatever it does."""
        self._ask_to_end()
        self._pipes.close()

    def processor_seconds(self) -> float | None:
        """Return its processor time, also after its end; None where it is unknown."""
        try:
            if not self._is_asked_to_end:
                return self._warm.ask_time()
            self._warm.settle()
        except WarmProcessDiedError:
            return None
        return self._warm.fork_seconds

    def _ask_to_end(self) -> None:
        if not self._is_asked_to_end:
            self._is_asked_to_end = True
            self._warm.ask_to_end_fork()
