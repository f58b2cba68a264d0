"""Two pipes to a process that may never read, never write, or write for ever: each wait has a time limit."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

_PIECE_BYTES = 1 << 20
_MOST_SECONDS = 2_000_000.0  # per wait: milliseconds, as an int of C


@dataclass(slots=True)
class Pipes:
    """The parent's ends, which this object owns: it writes to `sink` and reads from `source`."""

    sink: int
    source: int
    _rest: bytearray = field(default_factory=bytearray)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        os.set_blocking(self.sink, False)

    def give(self, parts: Iterable[bytes], give_up_at: float) -> None:
        """Write. Raises TimeoutError where not all is read by `give_up_at`; `take` reports a closed pipe."""
        with suppress(BrokenPipeError):
            for part in parts:
                left = memoryview(part)
                while left:
                    _wait(self.sink, select.POLLOUT, give_up_at)
                    with suppress(BlockingIOError):
                        left = left[os.write(self.sink, left[:_PIECE_BYTES]) :]

    def take(self, size: int, give_up_at: float) -> bytes:
        """Return the next bytes. Raises TimeoutError, and EOFError at the end."""
        while len(self._rest) < size:
            _wait(self.source, select.POLLIN, give_up_at)
            read = os.read(self.source, _PIECE_BYTES)
            if not read:
                raise EOFError
            self._rest += read
        piece = bytes(memoryview(self._rest)[:size])
        del self._rest[:size]
        return piece

    def close(self) -> None:
        """Close both; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self.sink)
            os.close(self.source)


def _wait(descriptor: int, event: int, give_up_at: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(1000 * min(max(0.0, give_up_at - time.monotonic()), _MOST_SECONDS)):
        raise TimeoutError
