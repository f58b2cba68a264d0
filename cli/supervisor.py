"""Keeps child processes running: starts them in groups, restarts those that die, stops the groups in reverse order."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from cli.embedded.child import Child, ChildSpec
from jobs.errors import ServiceError

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
_MAX_DOUBLINGS = math.ceil(math.log2(LONGEST_PAUSE_SECONDS / FIRST_PAUSE_SECONDS))
STEADY_SECONDS = 60.0  # after this long, earlier deaths of a child no longer count
_POLL_SECONDS = 0.1  # during a start or a stop
_WATCH_SECONDS = 0.25
_LOOK_AT_LOGS_SECONDS = 10.0
_SILENT_ENDS = frozenset({0, -signal.SIGKILL, -signal.SIGTERM})
"""A child that was asked to end, or killed, logs no reason: its last line would be taken for one."""


class StopRequestedError(Exception):
    """A stop was requested while something else was being waited for."""


@dataclass(slots=True)
class _Watched:
    child: Child
    started_at: float
    num_deaths: int = 0
    start_again_at: float | None = None


@dataclass(slots=True)
class Supervisor:
    """Owns the children of one stack. Use it from the main thread, inside `handles_signals()`."""

    say: Callable[[str], None]
    max_deaths: int | None = None  # deaths in a row after which `tend` gives up; None: never
    monotonic: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    _watched: list[_Watched] = field(default_factory=list, init=False)
    _groups: list[list[Child]] = field(default_factory=list, init=False)  # children started together
    _later: list[tuple[ChildSpec, Callable[[], bool]]] = field(default_factory=list, init=False)
    _begun: list[Child] = field(default_factory=list, init=False)  # will be the last group
    _look_at_logs_at: float = field(default=-math.inf, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _force: threading.Event = field(default_factory=threading.Event, init=False)

    @contextmanager
    def handles_signals(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP as requests to stop; a second signal kills the children at once."""
        names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {name: signal.signal(name, self._on_signal) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    @property
    def children(self) -> Sequence[Child]:
        return [watched.child for watched in self._watched]

    def start(self, specs: Sequence[ChildSpec]) -> None:
        """Start `specs` together and wait until all are ready.

        Raises ServiceError if one fails, StopRequestedError if a signal arrives; `stop()` then ends those that started.
        """
        self._groups.append([])
        self._start_in(self._groups[-1], specs)
        self._wait_for(self._groups[-1])

    def begin(self, specs: Sequence[ChildSpec]) -> None:
        """Start `specs` that need later groups: they load meanwhile, and are stopped before those.

        Once, before `finish`. Raises ServiceError if one cannot be started.
        """
        assert not self._begun, "one group at a time"
        self._start_in(self._begun, specs)

    def finish(self) -> None:
        """Wait until the begun group is ready; raises as `start` does."""
        group, self._begun = self._begun, []
        self._groups.append(group)
        self._watched.sort(key=lambda watched: any(watched.child is child for child in group))  # as if started now
        self._wait_for(group)

    def start_once(self, spec: ChildSpec, is_needed: Callable[[], bool]) -> None:
        """Start a child in the last group as soon as `is_needed()`; its readiness is not waited for."""
        self._later.append((spec, is_needed))

    def _start_in(self, group: list[Child], specs: Sequence[ChildSpec]) -> None:
        for spec in specs:
            child = Child(spec)
            child.start()
            self._watched.append(_Watched(child=child, started_at=self.monotonic()))
            group.append(child)

    def _wait_for(self, group: Sequence[Child]) -> None:
        for child in group:
            child.wait_until_ready(on_wait=self._raise_if_stopping)

    def _raise_if_stopping(self) -> None:
        if self._stop.is_set():
            raise StopRequestedError

    def watch(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Restart children that die, until a stop is requested or `until()` holds."""
        while not self._stop.is_set() and not until():
            self.tend()
            self.pause(_WATCH_SECONDS)

    def tend(self) -> None:
        """Check every child once: note deaths, restart after the pause, and rotate long logs now and then.

        Raises ServiceError if a child has died `max_deaths` times in a row.
        """
        now = self.monotonic()
        if now >= self._look_at_logs_at:
            self._look_at_logs_at = now + _LOOK_AT_LOGS_SECONDS
            for child in self.children:
                child.rotate_log()
        self._start_needed()
        for watched in self._watched:
            if watched.start_again_at is None and not watched.child.is_running:
                self._note_death(watched, now)
            elif watched.start_again_at is not None and now >= watched.start_again_at:
                self._start_again(watched, now)

    def tend_or_stop(self) -> None:
        """Tend the children between other work. Raises StopRequestedError after a signal."""
        self._raise_if_stopping()
        self.tend()

    def _start_needed(self) -> None:
        needed = [later for later in self._later if later[1]()]
        for later in needed:
            self._later.remove(later)
        self._start_in(self._groups[-1], [spec for spec, _ in needed])

    def _start_again(self, watched: _Watched, now: float) -> None:
        watched.start_again_at = None
        watched.started_at = now
        try:
            watched.child.start()
        except (ServiceError, OSError) as error:  # such as a full disk, or an old server that keeps running
            self._plan_restart(watched, now, f"{watched.child.spec.name} does not start: {error}")

    def _note_death(self, watched: _Watched, now: float) -> None:
        if now - watched.started_at >= STEADY_SECONDS:
            watched.num_deaths = 0
        child = watched.child
        is_silent = child.exit_status in _SILENT_ENDS
        words = f", its log is {child.spec.log_path}" if is_silent else child.last_words()
        self._plan_restart(watched, now, f"{child.spec.name} stopped ({_reason(child.exit_status)}){words}")

    def _plan_restart(self, watched: _Watched, now: float, what: str) -> None:
        # The number of deaths is unbounded, and 2**1000 is beyond a float.
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(watched.num_deaths, _MAX_DOUBLINGS), LONGEST_PAUSE_SECONDS)
        watched.num_deaths += 1
        if self.max_deaths is not None and watched.num_deaths >= self.max_deaths:
            raise ServiceError(what)
        watched.start_again_at = now + pause
        self.say(f"{what}; starting it again in {pause:g} s")

    def stop(self) -> None:
        """Stop the groups in reverse order of their start, the children of a group together.

        A forced stop kills them.
        """
        self._watched.clear()
        self._later.clear()
        if self._begun:
            self._groups.append(self._begun)
            self._begun = []
        while self._groups:
            self._stop_together(self._groups[-1])
            self._groups.pop()

    def _stop_together(self, children: Sequence[Child]) -> None:
        asked_at = self.monotonic()
        for child in children:
            child.ask_to_stop()
        for child in children:
            while not child.wait(_POLL_SECONDS):
                if self._force.is_set() or self.monotonic() > asked_at + child.spec.stop_seconds:
                    break
            child.kill()


def _reason(exit_status: int | None) -> str:
    if exit_status is None:
        return "never started"
    return f"exit status {exit_status}" if exit_status >= 0 else f"signal {signal.Signals(-exit_status).name}"
