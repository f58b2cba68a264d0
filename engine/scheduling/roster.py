"""Place of every sequence: waiting, running, behind a sibling or ending, and each move between these.

Every move is logged with its reason. The roster decides who may run, not what a step computes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np

from engine.config import SchedulerConfig
from engine.scheduling.admission import OutputForecast, Shortage
from engine.scheduling.blocks import BlockPool, num_blocks_for
from engine.scheduling.decisions import Decision, DecisionLog, Reason
from engine.scheduling.followers import Followers
from engine.scheduling.pace import Pace
from engine.scheduling.policies import make_policy
from engine.scheduling.policy import SchedulerView
from engine.scheduling.request import Sequence, row_of
from engine.scheduling.seat_map import SeatMap
from engine.scheduling.seat_numbers import Int64, ints
from engine.scheduling.swap import SwapSpace
from engine.scheduling.waiting import WaitingQueue
from engine.stats import CacheCounters, SchedulerCounters

_rank = attrgetter("rank")


class Roster:
    """Own every sequence from `add` to `remove`, its seat and its place in the order.

    `running` is in the policy's order, best first, and `rows` are their seats' rows; only the roster changes them.
    """

    def __init__(
        self, pool: BlockPool, config: SchedulerConfig, *, swap: SwapSpace | None, clock: Callable[[], float]
    ) -> None:
        self.counters = SchedulerCounters()
        self.cache_counters = CacheCounters()
        self.forecast = OutputForecast()
        self.pace = Pace(clock, self.forecast, max_num_batched_tokens=config.max_num_batched_tokens)
        self.seats = SeatMap(pool, config)
        self.policy = make_policy(config.policy)
        find_prefix = self.seats.find_prefix
        self.policy.attach(
            SchedulerView(
                pace=self.pace,
                seat_table=self.seats.table,
                num_cached_tokens=lambda sequence: len(find_prefix(sequence)[0]) * pool.block_size,
                has_prefix_cache=config.enable_prefix_caching,
            )
        )
        self.running: list[Sequence] = []
        self.rows: Int64 = ints([])
        self.waiting = WaitingQueue(self.policy, max_passed_over=config.max_passed_over)
        self.log = DecisionLog(self.pace.now, self.counters)
        self.num_departures = 0
        self._pool = pool
        self._config = config
        self._swap = swap
        self._leaving: set[Sequence] = set()
        self._followers = Followers()
        self._live: dict[int, list[Sequence]] = {}

    @property
    def num_waiting(self) -> int:
        """Return how many sequences wait, including those that wait for their first sibling's prompt."""
        return len(self.waiting) + len(self._followers)

    @property
    def has_work(self) -> bool:
        """Tell whether any sequence is unfinished."""
        return bool(self._live)

    def unfinished(self, request_id: int) -> list[Sequence]:
        """Return a request's sequences that have neither finished nor been aborted."""
        return self._live.get(request_id, [])

    def decisions(self, request_id: int | None = None) -> list[Decision]:
        """Return the last decisions, oldest first: all that are kept, or a request's and why it waits now."""
        if request_id is None:
            return self.log.recent()
        waiting = [sequence for sequence in self._live.get(request_id, ()) if sequence in self.waiting]
        head = self.waiting.peek() if waiting else None
        behind = [
            self.log.decision(sequence, Reason.BEHIND, other=head)
            for sequence in waiting
            if head is not None and sequence is not head
        ]
        return self.log.of_request(request_id) + behind

    def add(self, sequences: list[Sequence]) -> None:
        """Add the children of one request. All but the first wait until the first has computed the shared prompt."""
        request_id = sequences[0].request.request_id
        assert request_id not in self._live, f"request {request_id} is already running"
        if not self._live:
            self.pace.pause()
        self._live[request_id] = list(sequences)
        now = self.pace.now()
        for sequence in sequences:
            sequence.is_live = True
            sequence.times.queued_at = now
            if self._has_outgrown_its_angles(sequence):
                self._take_long_angles(sequence)
        first, others = sequences[0], sequences[1:]
        self.waiting.push(first)
        if others:
            self._followers.hold(others, leader=first)
            for sequence in others:
                self.log.record(sequence, Reason.SHARED_PREFIX, other=first)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence in any state."""
        self._withdraw(sequence)
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """End a sequence that has left all queues; siblings that wait for it start."""
        self.release_followers_of(sequence)
        if self._swap is not None:
            self._swap.drop(sequence)
        sequence.is_live = False
        request_id = sequence.request.request_id
        siblings = self._live[request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._live[request_id]
            self.log.forget(request_id)

    def wait(self, sequences: Iterable[Sequence]) -> None:
        """Put sequences that are in no queue into the waiting queue."""
        for sequence in sequences:
            self.waiting.push(sequence)

    def release_followers(self) -> None:
        """Move sequences whose first sibling has computed their prompt to the queue for seats."""
        self.wait(self._followers.release_ready())

    def release_followers_of(self, leader: Sequence) -> None:
        """Move sequences whose first sibling this is to the queue for seats."""
        self.wait(self._followers.release(leader))

    def start(self, sequence: Sequence, shared: list[int], position: int) -> None:
        """Seat the sequence that is next in the queue."""
        self.waiting.pop()
        self.seats.seat(sequence, shared, position)
        num_found = sequence.num_computed_tokens = len(shared) * self._pool.block_size
        self.cache_counters.num_looked_up_tokens += sequence.num_tokens
        self.cache_counters.num_cached_tokens += num_found
        if self._swap is not None:
            sequence.num_computed_tokens = max(num_found, self._swap.bring_back(sequence, self.seats))
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = min(num_found, sequence.num_prompt_tokens)
            sequence.times.started_at = self.pace.now()
        self.policy.on_seat(sequence)
        sequence.rank = self._rank_of(sequence)
        index = bisect_right(self.running, sequence.rank, key=_rank)
        self.running.insert(index, sequence)
        self.rows = np.insert(self.rows, index, sequence.row)
        self.log.record(sequence, Reason.STARTED)

    def preempt(
        self, sequence: Sequence, reason: Reason, other: Sequence | None = None, *, shortage: Shortage | None = None
    ) -> None:
        """Take a running sequence's seat, mostly for another sequence; it waits again."""
        self.log.record(sequence, reason, other=other, shortage=shortage)
        swap = self._swap if reason is not Reason.NEW_ANGLES else None  # its KV cannot be reused
        if swap is not None and swap.put_aside(sequence, block_size=self._pool.block_size):
            self.counters.num_swaps += 1
            sequence.num_swaps += 1
        self._leave(sequence)
        sequence.num_preemptions += 1
        sequence.num_computed_tokens = 0
        sequence.draft_token_ids = []
        sequence.times.queued_at = self.pace.now()
        self.counters.num_preemptions += reason is not Reason.NEW_ANGLES
        if reason is Reason.PREEMPTED_FOR_BLOCKS:
            self.forecast.raise_after_preemption()
        self.waiting.push(sequence)

    def leave_drawn(self, sequence: Sequence) -> None:
        """Give up the seat of a sequence whose last token is being drawn; `remove` follows once the token is known."""
        self._leave(sequence)
        self._leaving.add(sequence)

    def computer_of_next(self, sequence: Sequence, shared: list[int]) -> Sequence | None:
        """Return the sequence that the next one in the queue waits for: it computes the block after the shared ones."""
        if self.waiting.is_turn_of_oldest:
            return None
        return self.seats.computer_of_next(sequence, len(shared))

    def start_over(self) -> None:
        """Recompute sequences that have become too long for their angles."""
        numbers, limit = self.seats.table.numbers, self._config.angles_change_after
        assert limit is not None, "no length changes the angles"
        has_outgrown = (numbers.num_tokens[self.rows] > limit) & (numbers.has_long_angles[self.rows] == 0)
        for sequence in list(compress(self.running, has_outgrown.tolist())):
            self._take_long_angles(sequence)
            self.preempt(sequence, Reason.NEW_ANGLES)

    def stop(self, sequence: Sequence) -> None:
        """Take a running sequence out of the order; it keeps its seat."""
        index = self.running.index(sequence)
        del self.running[index]
        self.rows = np.delete(self.rows, index)

    def rank_again(self) -> None:
        """Sort the running sequences by their present ranks, if ranks move and this step may have to preempt."""
        most_blocks = len(self.running) + num_blocks_for(self._config.max_num_batched_tokens, self._pool.block_size)
        if self.policy.has_moving_ranks and self._pool.num_available < most_blocks:
            for sequence in self.running:
                sequence.rank = self._rank_of(sequence)
            self.running.sort(key=_rank)
            self.rows = ints(list(map(row_of, self.running)))

    def check_integrity(self, seated: list[Sequence]) -> None:
        """Raise AssertionError unless blocks, the seats of those `seated`, and queues are consistent."""
        self.seats.check_integrity(seated)
        assert self.running == sorted(self.running, key=_rank), "the running sequences are out of order"
        assert self.rows.tolist() == list(map(row_of, self.running)), "the rows are not those of the running sequences"
        waiting = [*self.waiting, *self._followers]
        assert all(sequence.seat is None for sequence in waiting), "a waiting sequence has a seat"
        num_parked = sum(len(sequence.parked.host_block_ids) for sequence in waiting if sequence.parked is not None)
        assert self._swap is None or self._swap.num_free + num_parked == self._swap.num_blocks, "a host block is lost"
        live = sorted(id(sequence) for group in self._live.values() for sequence in group)
        known = (*self.running, *waiting, *self._leaving)
        assert live == sorted(id(sequence) for sequence in known), "a sequence is lost"

    def _withdraw(self, sequence: Sequence) -> None:
        """Remove a sequence from its place; it may have been preempted since its last token was drawn."""
        if sequence.seat is not None:
            self._leave(sequence)
        elif sequence in self._leaving:
            self._leaving.remove(sequence)
        elif sequence in self._followers:
            self._followers.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self.stop(sequence)
        self.policy.on_leave(sequence)
        self.num_departures += 1
        self.seats.leave(sequence)

    def _take_long_angles(self, sequence: Sequence) -> None:
        sequence.has_long_angles = True
        sequence.chain = self._pool.chain(sequence.request.prefix_owner, has_long_angles=True)

    def _has_outgrown_its_angles(self, sequence: Sequence) -> bool:
        limit = self._config.angles_change_after
        return limit is not None and not sequence.has_long_angles and sequence.num_tokens > limit

    def _rank_of(self, sequence: Sequence) -> tuple[Any, ...]:
        return (not sequence.is_protected, *self.policy.rank(sequence))
