"""Holds Ctrl-C back while something must not be left half done. Knows signals, and nothing of what is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class HeldInterrupts:
    """Those of one block. `has_cut` tells that one raised at once, so that what was being done is half done."""

    def __init__(self, handler: Handler) -> None:
        self.has_cut = False
        self._handler = handler
        self._newest: tuple[int, FrameType | None] | None = None

    def hold(self, number: int, frame: FrameType | None) -> None:
        """Keep the first one; let the second one through."""
        is_first, self._newest = self._newest is None, (number, frame)
        if not is_first:
            self.has_cut = True
            self.let_through()
            self.has_cut = False  # the handler did not raise

    def let_through(self) -> None:
        """Hand over the one that is held, if any: its handler may raise here."""
        newest, self._newest = self._newest, None
        if newest is not None:
            self._handler(*newest)


@contextmanager
def held_interrupts() -> Iterator[HeldInterrupts]:
    """Hold SIGINT back in this block; call `let_through` of what it yields where an interrupt may come.

    A second one comes at once: whoever sends it does not want to wait. Nothing is held where SIGINT has no handler in
    Python, or outside the main thread, which alone gets it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield HeldInterrupts(lambda _number, _frame: None)
        return
    held = HeldInterrupts(handler)
    signal.signal(signal.SIGINT, held.hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, handler)
        held.let_through()
