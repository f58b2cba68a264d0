"""Preempt for the next sequence in the queue if it may take others' seats, or a single one.

victims.py chooses the sequences to preempt.
"""

from __future__ import annotations

from engine.scheduling.decisions import Reason
from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster
from engine.scheduling.victims import VictimChoice


class Yielding:
    """Give seats to urgent sequences, and to tenants that hold few, before a step is planned."""

    def __init__(self, roster: Roster, victims: VictimChoice, *, max_num_seqs: int) -> None:
        self._roster = roster
        self._victims = victims
        self._max_num_seqs = max_num_seqs

    def yield_seats(self) -> None:
        """Preempt for the next sequence in the queue if it may take others' seats and cannot start without.

        Sequences that wait for a prefix are skipped, like when waiting ones are scheduled; the sequence that computes
        that prefix keeps its seat.
        """
        passed_over: list[Sequence] = []
        awaited: set[Sequence] = set()
        while self._roster.waiting and self._roster.running and len(passed_over) <= self._max_num_seqs:
            first = self._roster.waiting.peek()
            is_urgent = self._may_take_seat(first, self._roster.running[-1])
            in_excess = None if is_urgent else self._last_in_excess(first, awaited)
            if not is_urgent and in_excess is None:
                break
            shared, _ = self._roster.seats.find_prefix(first)
            computer = self._roster.computer_of_next(first, shared)
            if computer is None:
                if in_excess is None:
                    self._send_out_for(first, shared, awaited)
                else:
                    self._send_out_one_for(first, shared, in_excess)
                break
            awaited.add(computer)
            self._roster.waiting.remove(first)
            passed_over.append(first)
        self._roster.wait(passed_over)

    def _send_out_for(self, urgent: Sequence, shared: list[int], awaited: set[Sequence]) -> None:
        def may_go(running: Sequence) -> bool:
            return running not in awaited and self._may_take_seat(urgent, running)

        for victim in self._victims.victims_for(urgent, shared, self._roster.running, may_go):
            self._roster.preempt(victim, Reason.PREEMPTED_FOR_URGENT, urgent)

    def _send_out_one_for(self, waiting: Sequence, shared: list[int], in_excess: Sequence) -> None:
        in_order = [running for running in self._roster.running if running is not in_excess] + [in_excess]
        for victim in self._victims.victims_for(waiting, shared, in_order, lambda running: running is in_excess):
            self._roster.preempt(victim, Reason.PREEMPTED_FOR_SHARE, waiting)

    def _last_in_excess(self, waiting: Sequence, awaited: set[Sequence]) -> Sequence | None:
        """Return the worst running sequence of the tenant that must give up a seat, if there is such a tenant."""
        tenant = self._roster.policy.tenant_that_yields(waiting)
        if tenant is None:
            return None
        priority = waiting.request.priority
        for running in reversed(self._roster.running):
            is_theirs = (running.request.tenant, running.request.priority) == (tenant, priority)
            if is_theirs and running not in awaited and not running.is_protected and self._is_in_turn(waiting, running):
                return running
        return None

    def _may_take_seat(self, urgent: Sequence, running: Sequence) -> bool:
        if running.is_protected or not self._roster.policy.may_preempt(urgent, running):
            return False
        return self._is_in_turn(urgent, running)

    def _is_in_turn(self, waiting: Sequence, running: Sequence) -> bool:
        # A sequence that is next because of its age would not be after an older one has joined the queue.
        return not self._roster.waiting.is_turn_of_oldest or waiting.request.arrival <= running.request.arrival
