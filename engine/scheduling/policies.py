"""Which waiting sequence starts next, which running one is preempted first, and whether one may take another's seat.

One small class per policy; `policy` has their interface. Whatever the policy, `WaitingQueue` gives the oldest its turn,
so no sequence waits without bound.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from engine.config import PolicyName
from engine.scheduling.plan import StepPlan
from engine.scheduling.policy import KeyedPolicy, Policy, age
from engine.scheduling.prompt_turns import PromptTurns
from engine.scheduling.request import NO_ROUND, Sequence
from engine.scheduling.seat_shares import SeatShares
from engine.scheduling.turns import Accounts, TenantTurns
from engine.scheduling.waiting import Key, KeyedQueue


class FcfsPolicy(KeyedPolicy):
    """First come, first served; the latest arrival is preempted first."""

    def key(self, sequence: Sequence) -> Key:
        return age(sequence)


class PriorityPolicy(Policy):
    """Lowest `priority` first; within it the tenants in turns; within a tenant preempted ones first, then by deadline.

    Within a deadline, sequences that share a prefix follow each other if there is a prefix cache; else by arrival. A
    sequence of a strictly lower number takes the seat of one with a higher one; within a number, a tenant takes single
    seats of one that holds far more. The running sequence with the highest number, then the latest arrival, is
    preempted first.
    """

    def __init__(self) -> None:
        self._shares = SeatShares()
        self._accounts = Accounts()
        self._classes: dict[int, TenantTurns] = {}  # by priority; classes without waiting sequences are kept
        self._priorities: list[int] = []  # a heap of their numbers

    def push(self, sequence: Sequence) -> None:
        priority = sequence.request.priority
        if priority not in self._classes:
            heappush(self._priorities, priority)
        if not self._classes.get(priority):
            # With an empty queue there was nothing to share: service until now no longer counts.
            self._classes[priority] = self._new_turns()
        self._classes[priority].push(sequence)

    def peek(self) -> Sequence:
        while True:
            turns = self._classes[self._priorities[0]]
            if turns:
                return turns.peek()
            del self._classes[heappop(self._priorities)]

    def discard(self, sequence: Sequence) -> None:
        self._classes[sequence.request.priority].discard(sequence)

    def rank(self, sequence: Sequence) -> Key:
        return (sequence.request.priority, *age(sequence))

    def class_of(self, sequence: Sequence) -> int | None:
        return sequence.request.priority

    def may_preempt(self, waiting: Sequence, running: Sequence) -> bool:
        return waiting.request.priority < running.request.priority

    def tenant_that_yields(self, waiting: Sequence) -> str | None:
        request = waiting.request
        tenant = self._shares.holder_of_far_more(request)
        turns = self._classes[request.priority]
        # A tenant that was not served more has the next turn as soon as it waits, and would take its seat back.
        return tenant if tenant is not None and turns.served(request.tenant) < turns.served(tenant) else None

    def on_leave(self, sequence: Sequence) -> None:
        self._shares.leave(sequence)
        self._accounts.leave(sequence)

    def on_seat(self, sequence: Sequence) -> None:
        self._shares.take(sequence)
        self._accounts.take(sequence)
        if turns := self._classes.get(sequence.request.priority):
            turns.charge_start(sequence)
        else:
            sequence.num_charged_tokens = sequence.num_tokens
        sequence.round_key = NO_ROUND

    def on_step(self, plan: StepPlan) -> None:
        contested = {priority: turns for priority, turns in self._classes.items() if turns}
        # Drafts that were not kept are not among their tokens.
        for account, amount in self._accounts.charge(plan, self.view.seat_table):
            if account.priority in contested:
                contested[account.priority].charge(account.tenant, amount)
        for sequence, seconds in plan.grammar_seconds.items():
            if sequence.request.priority in contested:
                contested[sequence.request.priority].charge_time(sequence, seconds * self.view.pace.tokens_per_second)

    def _new_turns(self) -> TenantTurns:
        if self.view.has_prefix_cache:
            return PromptTurns(_preempted_then_deadline, self.view.num_cached_tokens)
        return TenantTurns(_preempted_then_deadline)


class ShortestPolicy(KeyedPolicy):
    """Smallest max_tokens first, then the earlier arrival. Long requests start when they are the oldest."""

    def key(self, sequence: Sequence) -> Key:
        return (sequence.request.max_tokens, *age(sequence))


class DeadlinePolicy(Policy):
    """Earliest deadline first among those that can still be met; late ones next; those without a deadline last.

    Slack is the time left until the deadline minus the time the request would run. A request without slack no longer
    delays others that can still be met (under overload, plain earliest-deadline-first makes all of them late). A
    request whose slack is less than `URGENCY` of its running time may take the seat of the one with the latest
    deadline, if that one could start again and still have more slack.
    """

    URGENCY = 0.5

    def __init__(self) -> None:
        self._on_time = KeyedQueue()
        self._late = KeyedQueue()
        self._undated = KeyedQueue()

    def push(self, sequence: Sequence) -> None:
        if sequence.request.deadline is None:
            self._undated.push(age(sequence), sequence)
        else:
            self._on_time.push((_deadline(sequence), *age(sequence)), sequence)

    def peek(self) -> Sequence:
        while self._on_time:
            sequence = self._on_time.peek()
            if self._slack(sequence) >= 0.0:
                return sequence
            # Each sequence moves at most once.
            self._on_time.discard(sequence)
            self._late.push(age(sequence), sequence)
        return self._late.peek() if self._late else self._undated.peek()

    def discard(self, sequence: Sequence) -> None:
        for queue in (self._on_time, self._late, self._undated):
            if sequence in queue:
                queue.discard(sequence)

    def rank(self, sequence: Sequence) -> Key:
        return (_deadline(sequence), *age(sequence))

    def may_preempt(self, waiting: Sequence, running: Sequence) -> bool:
        if _deadline(waiting) >= _deadline(running):
            return False
        slack = self._slack(waiting)
        is_urgent = 0.0 <= slack < self.URGENCY * self.view.pace.seconds_to_run(waiting)
        return is_urgent and self._slack(running) > slack

    def _slack(self, sequence: Sequence) -> float:
        pace = self.view.pace
        return _deadline(sequence) - pace.now() - pace.seconds_to_run(sequence)


class FairPolicy(Policy):
    """The tenants in turns, whatever the priorities; within a tenant the earlier arrival.

    The tenant that was served the most for its weight is preempted first.
    """

    has_moving_ranks = True

    def __init__(self) -> None:
        self._accounts = Accounts()
        self._turns = TenantTurns(age)

    def push(self, sequence: Sequence) -> None:
        self._turns.push(sequence)

    def peek(self) -> Sequence:
        return self._turns.peek()

    def discard(self, sequence: Sequence) -> None:
        self._turns.discard(sequence)

    def rank(self, sequence: Sequence) -> Key:
        return (self._turns.served(sequence.request.tenant), *age(sequence))

    def class_of(self, sequence: Sequence) -> int | None:
        return 0

    def on_leave(self, sequence: Sequence) -> None:
        self._accounts.leave(sequence)

    def on_seat(self, sequence: Sequence) -> None:
        self._accounts.take(sequence)
        self._turns.charge_start(sequence)

    def on_step(self, plan: StepPlan) -> None:
        for account, amount in self._accounts.charge(plan, self.view.seat_table):
            self._turns.charge(account.tenant, amount)
        for sequence, seconds in plan.grammar_seconds.items():
            self._turns.charge_time(sequence, seconds * self.view.pace.tokens_per_second)


class PrefixPolicy(Policy):
    """The longest cached prefix first, among the `WINDOW` that wait longest; then the earlier arrival.

    The choice stands until it has started: it is made once per start, not once per step. Without a prefix cache this is
    first come, first served.
    """

    WINDOW = 64

    def __init__(self) -> None:
        self._window: list[Sequence] = []
        self._rest = KeyedQueue()
        self._choice: Sequence | None = None

    def push(self, sequence: Sequence) -> None:
        if sequence.num_preemptions:
            self._window.append(sequence)  # it started once, so it is older than everything outside the window
        else:
            self._rest.push(age(sequence), sequence)

    def peek(self) -> Sequence:
        if self._choice is None:
            while self._rest and len(self._window) < self.WINDOW:
                self._window.append(self._rest.peek())
                self._rest.discard(self._window[-1])
            count = self.view.num_cached_tokens
            self._choice = min(self._window, key=lambda sequence: (-count(sequence), *age(sequence)))
        return self._choice

    def discard(self, sequence: Sequence) -> None:
        if sequence in self._rest:
            self._rest.discard(sequence)
        else:
            self._window.remove(sequence)
        if sequence is self._choice:
            self._choice = None

    def rank(self, sequence: Sequence) -> Key:
        return age(sequence)


POLICIES: dict[PolicyName, type[Policy]] = {
    PolicyName.FCFS: FcfsPolicy,
    PolicyName.PRIORITY: PriorityPolicy,
    PolicyName.DEADLINE: DeadlinePolicy,
    PolicyName.SHORTEST: ShortestPolicy,
    PolicyName.FAIR: FairPolicy,
    PolicyName.PREFIX: PrefixPolicy,
}


def make_policy(name: PolicyName) -> Policy:
    """Return a new policy of that name."""
    return POLICIES[name]()


def _preempted_then_deadline(sequence: Sequence) -> Key:
    return (sequence.num_preemptions == 0, _deadline(sequence), sequence.round_key, *age(sequence))


def _deadline(sequence: Sequence) -> float:
    return math.inf if sequence.request.deadline is None else sequence.request.deadline
