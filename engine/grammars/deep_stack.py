"""Threads with a stack deep enough for any accepted grammar: llguidance descends by recursion."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

STACK_BYTES = 256 * 2**20
"""Stack of a compiling thread, far above what an accepted grammar needs (`limits.MAX_OPENINGS`).

It is address space, and becomes memory only as deep as a grammar goes.
"""

_stack_size = threading.Lock()
"""Held while the stack size of the process's new threads is changed."""

T = TypeVar("T")


def start_with_deep_stack(thread: threading.Thread) -> None:
    """Start a thread; one started by another caller at the same moment may get as large a stack, never a smaller."""
    with _stack_size:
        usual_bytes = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual_bytes)


def on_deep_stack(work: Callable[[], T]) -> T:
    """Call `work`, which must not raise, on a thread of its own, and return its result."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="grammar", daemon=True)
    start_with_deep_stack(thread)
    thread.join()
    return results[0]
