"""What SIGTERM does to a role that has no way of its own to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ends_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process at once with exit status 0: it was asked to end, and has nothing to save.

    Without a handler the exit status is that of a kill (143), and process 1 of a container does not end at all.
    uvicorn takes the signal over while it serves, and raises it again once all is closed, which then ends here: threads
    that a silent server keeps are waited for by no interpreter.
    """
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
