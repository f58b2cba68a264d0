"""Why a request was delayed or preempted: a bounded log of the scheduler's decisions, as values.

`sentence` formats a decision as text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from engine.scheduling.admission import Shortage
from engine.scheduling.request import Sequence
from engine.stats import SchedulerCounters


class Reason(StrEnum):
    """A decision about a sequence, or what keeps it waiting."""

    STARTED = "started"
    BEHIND = "behind"
    NO_SEAT = "no_seat"
    NO_BLOCKS = "no_blocks"
    NO_BUDGET = "no_budget"
    SHARED_PREFIX = "shared_prefix"
    PREEMPTED_FOR_BLOCKS = "preempted_for_blocks"
    PREEMPTED_FOR_URGENT = "preempted_for_urgent"
    PREEMPTED_FOR_SHARE = "preempted_for_share"
    NEW_ANGLES = "new_angles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision about a child of a request."""

    step: int
    """The step in which it was made."""
    seconds: float
    """Time on the scheduler's clock."""
    request_id: int
    index: int
    """Index of the child."""
    reason: Reason
    other_request_id: int | None = None
    """The request that it waits for or was preempted for."""
    num_needed_blocks: int | None = None
    """Set for NO_BLOCKS and for preemptions due to it, like the blocks available."""
    num_available_blocks: int | None = None
    waited_seconds: float
    """Since it arrived or was last preempted."""


class DecisionLog:
    """Keep the last `capacity` decisions, and the last `PER_REQUEST` of each unfinished request."""

    PER_REQUEST = 16

    def __init__(self, now: Callable[[], float], counters: SchedulerCounters, *, capacity: int = 4096) -> None:
        self._now = now
        self._counters = counters
        self._recent: deque[Decision] = deque(maxlen=capacity)
        self._num_untaken = 0
        self._by_request: dict[int, deque[Decision]] = {}
        self._blocked: tuple[Sequence, Reason] | None = None

    def decision(
        self, sequence: Sequence, reason: Reason, *, other: Sequence | None = None, shortage: Shortage | None = None
    ) -> Decision:
        """Return a decision made now, without keeping it."""
        now = self._now()
        return Decision(
            step=self._counters.num_steps,
            seconds=now,
            request_id=sequence.request.request_id,
            index=sequence.index,
            reason=reason,
            other_request_id=None if other is None else other.request.request_id,
            num_needed_blocks=None if shortage is None else shortage.num_needed_blocks,
            num_available_blocks=None if shortage is None else shortage.num_available_blocks,
            waited_seconds=now - sequence.times.queued_at,
        )

    def record(
        self, sequence: Sequence, reason: Reason, *, other: Sequence | None = None, shortage: Shortage | None = None
    ) -> None:
        """Keep a decision made now."""
        decision = self.decision(sequence, reason, other=other, shortage=shortage)
        self._recent.append(decision)
        self._num_untaken += 1
        own = self._by_request.get(decision.request_id)
        if own is None:
            own = self._by_request[decision.request_id] = deque(maxlen=self.PER_REQUEST)
        own.append(decision)

    def record_news(
        self, sequence: Sequence, reason: Reason, *, other: Sequence | None = None, shortage: Shortage | None = None
    ) -> None:
        """Record why the next sequence in the queue waits, if the reason has changed.

        Called once per step; without a change it costs a comparison.
        """
        blocked = self._blocked
        if blocked is None or blocked[0] is not sequence or blocked[1] is not reason:
            self._blocked = (sequence, reason)
            self.record(sequence, reason, other=other, shortage=shortage)

    def forget(self, request_id: int) -> None:
        """Drop the log of an ended request; the shared log of last decisions keeps its entries."""
        self._by_request.pop(request_id, None)
        if self._blocked is not None and self._blocked[0].request.request_id == request_id:
            self._blocked = None

    def recent(self) -> list[Decision]:
        """Return the last decisions, oldest first."""
        return list(self._recent)

    def pop_new(self) -> list[Decision]:
        """Return the kept decisions made since the last call, oldest first."""
        num_new, self._num_untaken = min(self._num_untaken, len(self._recent)), 0
        return list(islice(self._recent, len(self._recent) - num_new, None))

    def of_request(self, request_id: int) -> list[Decision]:
        """Return the request's decisions, oldest first; for an ended one those still among the last."""
        if request_id in self._by_request:
            return list(self._by_request[request_id])
        return [decision for decision in self._recent if decision.request_id == request_id]


def sentence(decision: Decision) -> str:
    """Return the decision as one English sentence, with its time and request."""
    who = f"request {decision.request_id}[{decision.index}]"
    return f"{decision.seconds:.3f} s, step {decision.step}: {who} {outcome(decision)}."


def outcome(decision: Decision, name: Callable[[int], str] = "request {}".format) -> str:
    """Return the outcome for the sequence as the end of a sentence; `name` formats other requests' ids."""
    other = "" if decision.other_request_id is None else name(decision.other_request_id)
    blocks = f"{decision.num_needed_blocks} blocks are needed and {decision.num_available_blocks} available"
    match decision.reason:
        case Reason.STARTED:
            what = f"started after waiting {decision.waited_seconds:.3f} s"
        case Reason.BEHIND:
            what = f"waits behind {other}, which is next"
        case Reason.NO_SEAT:
            what = "is next and waits: every seat of the batch is taken"
        case Reason.NO_BLOCKS:
            what = f"is next and waits: {blocks}"
        case Reason.NO_BUDGET:
            what = "is next and waits: this step's token budget is spent"
        case Reason.SHARED_PREFIX:
            what = f"waits for {other} to compute the prefix that both share"
        case Reason.PREEMPTED_FOR_BLOCKS if decision.other_request_id == decision.request_id:
            what = f"was preempted: {blocks}"
        case Reason.PREEMPTED_FOR_BLOCKS:
            what = f"was preempted for {other}: {blocks}"
        case Reason.PREEMPTED_FOR_URGENT:
            what = f"was preempted: {other} is more urgent"
        case Reason.PREEMPTED_FOR_SHARE:
            what = f"was preempted for {other}: its tenant holds far more seats"
        case Reason.NEW_ANGLES:
            what = "is computed anew: the model has other angles for sequences of its length"
    return what
