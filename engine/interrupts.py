"""Delay Ctrl-C while a block of code must not be interrupted half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


class HeldInterrupts:
    """The delayed interrupts of one block. `has_cut` is set if one raised at once, which left the work half done."""

    def __init__(self, handler: Handler) -> None:
        self.has_cut = False
        self._handler = handler
        self._newest: tuple[int, FrameType | None] | None = None

    def hold(self, number: int, frame: FrameType | None) -> None:
        """Keep the first one; deliver the second one at once."""
        is_first, self._newest = self._newest is None, (number, frame)
        if not is_first:
            self.has_cut = True
            self.let_through()
            self.has_cut = False  # the handler did not raise

    def let_through(self) -> None:
        """Deliver the delayed interrupt, if any: its handler may raise here."""
        newest, self._newest = self._newest, None
        if newest is not None:
            self._handler(*newest)


@contextmanager
def held_interrupts() -> Iterator[HeldInterrupts]:
    """Delay SIGINT in this block; call `let_through` of the yielded object where an interrupt may be delivered.

    A second one is delivered at once: its sender does not want to wait. Nothing is delayed if SIGINT has no handler in
    Python, or outside the main thread, which alone receives it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield HeldInterrupts(lambda _number, _frame: None)
        return
    interrupts = HeldInterrupts(handler)
    signal.signal(signal.SIGINT, interrupts.hold)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, handler)
        interrupts.let_through()
