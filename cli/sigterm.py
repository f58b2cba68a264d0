"""SIGTERM for a role without its own shutdown."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ends_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process at once with exit status 0: there is nothing to save.

    Without a handler the exit status is that of a kill (143), and process 1 of a container does not end at all.
    uvicorn handles the signal while it serves and raises it again when all is closed, which ends the process here: no
    interpreter then waits for threads that a silent server keeps.
    """
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
