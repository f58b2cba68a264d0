"""Interface of a policy, and its view of the scheduler: `policies` has one for each order of waiting sequences.

The scheduler calls the policy, and does what blocks and seats allow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from engine.scheduling.pace import Pace
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.seat_table import SeatTable
from engine.scheduling.waiting import Key, KeyedQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerView:
    """Scheduler state that a policy may read: the pace, the running sequences' numbers, and what is cached now.

    `num_cached_tokens` returns how many first tokens of a sequence are.
    """

    pace: Pace
    seat_table: SeatTable
    num_cached_tokens: Callable[[Sequence], int]
    has_prefix_cache: bool


class Policy(ABC):
    """Order the waiting sequences and the running ones. One object serves one scheduler.

    A push, peek and discard cost at most O(log waiting), amortised, or a constant number of prefix look-ups.
    `has_moving_ranks` means that ranks change while sequences run; the scheduler then recomputes them before a step in
    which blocks may run out.
    """

    has_moving_ranks = False

    def attach(self, view: SchedulerView) -> None:
        """Set the view of the scheduler; called once, before anything else."""
        self.view = view

    @abstractmethod
    def push(self, sequence: Sequence) -> None:
        """Add a sequence that waits, for the first time or after a preemption."""

    @abstractmethod
    def peek(self) -> Sequence:
        """Return the sequence that should start next; at least one waits."""

    @abstractmethod
    def discard(self, sequence: Sequence) -> None:
        """Remove a waiting sequence: it starts, or was aborted."""

    @abstractmethod
    def rank(self, sequence: Sequence) -> Key:
        """Return a running sequence's sort key: the smallest gets tokens first, the largest is preempted first."""

    def may_preempt(self, waiting: Sequence, running: Sequence) -> bool:
        """Tell whether a sequence that cannot start may take the seat of the one with the largest rank."""
        return False

    def tenant_that_yields(self, waiting: Sequence) -> str | None:
        """Return the tenant that must give one seat of the same priority to a sequence that cannot start."""
        return None

    def class_of(self, sequence: Sequence) -> int | None:
        """Return the number of the class in which its tenant takes turns, the most urgent lowest; None for no turns."""
        return None

    def on_seat(self, sequence: Sequence) -> None:  # noqa: B027 - most policies need nothing here
        """Called when a sequence starts."""

    def on_leave(self, sequence: Sequence) -> None:  # noqa: B027
        """Called when a sequence has left its seat."""

    def on_step(self, plan: StepPlan) -> None:  # noqa: B027
        """Called when a step was computed."""


class KeyedPolicy(Policy):
    """A policy whose order never changes while a sequence waits."""

    def __init__(self) -> None:
        self._queue = KeyedQueue()

    @abstractmethod
    def key(self, sequence: Sequence) -> Key:
        """Return a waiting sequence's sort key, smallest first."""

    def push(self, sequence: Sequence) -> None:
        self._queue.push(self.key(sequence), sequence)

    def peek(self) -> Sequence:
        return self._queue.peek()

    def discard(self, sequence: Sequence) -> None:
        self._queue.discard(sequence)

    def rank(self, sequence: Sequence) -> Key:
        return self.key(sequence)


def age(sequence: Sequence) -> tuple[int, int]:
    """Return the sort key of first come, first served."""
    return (sequence.request.arrival, sequence.index)
