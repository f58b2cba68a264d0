"""What a policy is asked, and what it may ask: `policies` has one for each order of waiting sequences.

Knows no blocks, no seats and no step: the scheduler asks, and does what is possible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from engine.scheduling.pace import Pace
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.waiting import Key, KeyedQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerView:
    """What a policy may ask: the pace, and how many first tokens of a sequence are cached now."""

    pace: Pace
    num_cached_tokens: Callable[[Sequence], int]
    has_prefix_cache: bool


class Policy(ABC):
    """Order the waiting sequences and the running ones. One object serves one scheduler.

    A push, a look at the best and a discard cost at most O(log waiting), amortised, or a constant number of prefix
    look-ups. `has_moving_ranks` tells that ranks change while sequences run; the scheduler then ranks them again
    before a step in which blocks may run out.
    """

    has_moving_ranks = False

    def attach(self, view: SchedulerView) -> None:
        """Take what the policy may ask; called once, before anything else."""
        self.view = view

    @abstractmethod
    def push(self, sequence: Sequence) -> None:
        """Take a sequence that waits, for the first time or after a preemption."""

    @abstractmethod
    def peek(self) -> Sequence:
        """Return the sequence that should start next; at least one waits."""

    @abstractmethod
    def discard(self, sequence: Sequence) -> None:
        """Forget a waiting sequence: it starts, or was aborted."""

    @abstractmethod
    def rank(self, sequence: Sequence) -> Key:
        """Return a running sequence's sort key: the smallest gets tokens first, the largest is preempted first."""

    def may_preempt(self, waiting: Sequence, running: Sequence) -> bool:
        """Tell whether a sequence that cannot start may take the seat of the one with the largest rank."""
        return False

    def tenant_that_yields(self, waiting: Sequence) -> str | None:
        """Return the tenant that has to give one seat of the same priority to a sequence that cannot start."""
        return None

    def class_of(self, sequence: Sequence) -> int | None:
        """Return the number of the class in which its tenant takes turns, the most urgent the least; None for none."""
        return None

    def on_seat(self, sequence: Sequence) -> None:  # noqa: B027 - most policies need nothing here
        """Learn that a sequence starts."""

    def on_leave(self, sequence: Sequence) -> None:  # noqa: B027
        """Learn that a sequence has left its seat."""

    def on_step(self, plan: StepPlan) -> None:  # noqa: B027
        """Learn that a step was computed."""


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
