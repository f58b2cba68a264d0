"""Warm processes that fork renderers: each has one fork at a time, and is kept for the next one.

A fork costs a small part of a started process: no interpreter starts, and no module is loaded.
"""

from __future__ import annotations

import atexit
import threading
import time

from confined.warm_process import ForkedProcess, WarmProcess, WarmProcessDiedError

_MODULE = "features.pipelines.rows.templates.child"
_START_SECONDS = 60.0
KEPT = 8
"""Idle processes that are kept: a control worker advances as many runs at once, and each may render."""


class WarmRenderers:
    """For all threads of this process."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._kept = kept
        self._idle: list[WarmProcess] = []
        self._lock = threading.Lock()

    def fork(self) -> WarmFork:
        """Return a new fork. Raise WarmProcessDiedError where no process starts."""
        while (warm := self._take_idle()) is not None:
            try:
                return WarmFork(self, warm)
            except WarmProcessDiedError:  # killed while it was idle
                warm.end()
        warm = WarmProcess.start(_MODULE, environment={}, give_up_at=time.monotonic() + _START_SECONDS)
        return WarmFork(self, warm)

    def take_back(self, warm: WarmProcess) -> None:
        """Keep a process whose fork is asked to end, as soon as it has; end it where enough are kept."""
        try:
            warm.settle()
        except WarmProcessDiedError:
            warm.end()
            return
        with self._lock:
            is_kept = len(self._idle) < self._kept
            if is_kept:
                self._idle.append(warm)
        if not is_kept:
            warm.end()

    def close(self) -> None:
        """End the idle processes."""
        while (warm := self._take_idle()) is not None:
            warm.end()

    def _take_idle(self) -> WarmProcess | None:
        with self._lock:
            return self._idle.pop() if self._idle else None


class WarmFork:
    """A fork, for one thread, which gives its warm process back at its end."""

    def __init__(self, renderers: WarmRenderers, warm: WarmProcess) -> None:
        """Raise WarmProcessDiedError."""
        self._renderers = renderers
        self._warm = warm
        self.process: ForkedProcess = warm.fork()
        self._is_ended = False

    def end(self) -> None:
        """End the fork, whatever it does; idempotent."""
        if not self._is_ended:
            self._is_ended = True
            self.process.end()
            self._renderers.take_back(self._warm)


RENDERERS = WarmRenderers()
"""Those of this process: none is started before the first template."""
atexit.register(RENDERERS.close)
