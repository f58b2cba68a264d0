"""Seats for whoever must not wait: preempt for the next in the queue, if it may take others' seats.

Decides whom to send away, with victims.py; knows no budget and no plan.
"""

from __future__ import annotations

from engine.scheduling.decisions import Reason
from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster
from engine.scheduling.victims import VictimChoice


class Yielding:
    """Give seats to urgent sequences before a step is planned."""

    def __init__(self, roster: Roster, victims: VictimChoice, *, max_num_seqs: int) -> None:
        self._roster = roster
        self._victims = victims
        self._max_num_seqs = max_num_seqs

    def yield_to_urgent(self) -> None:
        """Preempt for who is next in the queue, if it may take others' seats and starts in this step only without them.

        Those that wait for a prefix are passed over, as when the waiting have their turn; whom they wait for keeps its
        seat.
        """
        passed_over: list[Sequence] = []
        awaited: set[Sequence] = set()
        while self._roster.waiting and self._roster.running and len(passed_over) <= self._max_num_seqs:
            urgent = self._roster.waiting.peek()
            if not self._may_take_seat(urgent, self._roster.running[-1]):
                break
            shared, _ = self._roster.seats.find_prefix(urgent)
            computer = self._roster.computer_of_next(urgent, shared)
            if computer is None:
                self._send_out_for(urgent, shared, awaited)
                break
            awaited.add(computer)
            self._roster.waiting.remove(urgent)
            passed_over.append(urgent)
        self._roster.wait(passed_over)

    def _send_out_for(self, urgent: Sequence, shared: list[int], awaited: set[Sequence]) -> None:
        def may_go(running: Sequence) -> bool:
            return running not in awaited and self._may_take_seat(urgent, running)

        for victim in self._victims.victims_for(urgent, shared, self._roster.running, may_go):
            self._roster.preempt(victim, Reason.PREEMPTED_FOR_URGENT, urgent)

    def _may_take_seat(self, urgent: Sequence, running: Sequence) -> bool:
        if running.is_protected or not self._roster.policy.may_preempt(urgent, running):
            return False
        # Who is next for its age alone would not be after an older one has joined the queue.
        return not self._roster.waiting.is_turn_of_oldest or urgent.request.arrival <= running.request.arrival
