"""Two pipes to a process that may never read, never write, or write for ever: each wait has an end."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

_PIECE_BYTES = 1 << 20
_MOST_SECONDS = 2_000_000.0  # of one wait: milliseconds, as an int of C


@dataclass(slots=True)
class Pipes:
    """The parent's ends, which it owns: `sink` is what it writes to, `source` what it reads from."""

    sink: int
    source: int
    _rest: bytearray = field(default_factory=bytearray)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        os.set_blocking(self.sink, False)

    def give(self, parts: Iterable[bytes], give_up_at: float) -> None:
        """Write. Raises TimeoutError where not all is read by `give_up_at`; that nobody reads it, `take` tells."""
        with suppress(BrokenPipeError):
            for part in parts:
                left = memoryview(part)
                while left:
                    _wait(self.sink, select.POLLOUT, give_up_at)
                    with suppress(BlockingIOError):
                        left = left[os.write(self.sink, left[:_PIECE_BYTES]) :]

    def take(self, size: int, give_up_at: float) -> bytes:
        """Return the next bytes. Raises TimeoutError, and EOFError where there will be no more."""
        while len(self._rest) < size:
            _wait(self.source, select.POLLIN, give_up_at)
            read = os.read(self.source, _PIECE_BYTES)
            if not read:
                raise EOFError
            self._rest += read
        taken = bytes(memoryview(self._rest)[:size])
        del self._rest[:size]
        return taken

    def close(self) -> None:
        """Close both; a second time does nothing."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self.sink)
            os.close(self.source)


def _wait(descriptor: int, event: int, give_up_at: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(1000 * min(max(0.0, give_up_at - time.monotonic()), _MOST_SECONDS)):
        raise TimeoutError
