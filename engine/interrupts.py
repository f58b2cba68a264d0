"""Holds Ctrl-C back while something must not be left half done. Knows signals, and nothing of what is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[Callable[[], None]]:
    """Hold SIGINT back in this block; call what it yields where an interrupt may come.

    A second one comes at once: whoever sends it does not want to wait. Nothing is held where SIGINT has no handler in
    Python, or outside the main thread, which alone gets it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append((number, frame))
        if len(held) > 1:
            let_through()

    def let_through() -> None:
        if held:
            newest = held[-1]
            held.clear()
            handler(*newest)

    signal.signal(signal.SIGINT, hold)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, handler)
        let_through()
