"""Threads that carry out numbered work, one after the other, until there has been enough."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

AnyOutcome = TypeVar("AnyOutcome")


class Load(ABC, Generic[AnyOutcome]):
    """Work of `num_least` units or more, as it goes on until `end` is called."""

    noun: str
    """Of one piece of work, in the errors."""
    unit: str
    """In the plural."""

    def __init__(self, *, num_least: int, num_threads: int) -> None:
        self.outcomes: list[AnyOutcome] = []
        self.faults: list[str] = []
        """Errors of the load itself."""
        self.num_least = num_least
        self._num_submitted = 0
        self._is_enough = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._run, name=f"load-{n}", daemon=True) for n in range(num_threads)]

    @abstractmethod
    def prepare(self) -> None:
        """Do what the work needs, before it starts."""

    @abstractmethod
    def size_of(self, number: int, *, num_left: int) -> int:
        """Return the number of units of a piece of work; `num_left` is how many are missing, 0 if there are enough."""

    @abstractmethod
    def carry_out(self, number: int, size: int) -> AnyOutcome:
        """Do a piece of work to its end."""

    @property
    @abstractmethod
    def num_finished(self) -> int:
        """Return the number of units that have ended."""

    def start(self) -> None:
        self.prepare()
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Start no more than `num_least` units, even while faults go on."""
        self._is_enough.set()

    def stop(self) -> None:
        """Start no more work."""
        self.num_least = 0
        self.end()

    @property
    def is_over(self) -> bool:
        """Return whether all work has ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (following := self._next()) is not None:
            number, size = following
            try:
                self.outcomes.append(self.carry_out(number, size))
            except Exception as error:  # noqa: BLE001 - the edge of the thread: the error goes into the report
                self.faults.append(f"{self.noun} {number}: {type(error).__name__}: {error}")

    def _next(self) -> tuple[int, int] | None:
        """Return the number and the size of the next piece of work."""
        with self._lock:
            left = self.num_least - self._num_submitted
            if left <= 0 and self._is_enough.is_set():
                return None
            number = next(self._numbers)
            size = self.size_of(number, num_left=max(left, 0))
            self._num_submitted += size
            return number, size
