"""Decide, step by step, which sequences compute how many tokens. No torch, no text: counts and block ids only.

There are no phases. Every sequence has `num_computed_tokens` catching up with its tokens; a step hands out a token
budget, to running sequences first, then to waiting ones, and long prompts are cut into pieces. When a running sequence
needs a block and none is left, the one that the policy ranks last gives all of its blocks back and waits again; its
tokens are computed again later, mostly from the prefix cache, or copied to host memory and back where that is cheaper.
So does a sequence that has become so long that its model turns all of its keys by other angles (longrope).

A sequence whose prefix another one is computing in this step is passed over: in the next step it shares those blocks.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.config import SchedulerConfig
from engine.scheduling.admission import Gate, OutputForecast, Shortage
from engine.scheduling.blocks import BlockPool, num_blocks_for
from engine.scheduling.decisions import Decision, DecisionLog, Reason
from engine.scheduling.followers import Followers
from engine.scheduling.pace import Pace
from engine.scheduling.plan import StepPlan
from engine.scheduling.policies import SchedulerView, make_policy
from engine.scheduling.request import Sequence
from engine.scheduling.seat_map import SeatMap
from engine.scheduling.swap import SwapSpace
from engine.scheduling.victims import VictimChoice
from engine.scheduling.waiting import WaitingQueue
from engine.stats import CacheCounters, SchedulerCounters

_rank = attrgetter("rank")


class Scheduler:
    """Own every sequence from `add` to `finish` or `abort`, and the blocks they hold.

    Each step: `plan = schedule()`, compute it, append the sampled tokens, `advance(plan)`, `finish` those that ended.
    To plan a step while the device still draws the tokens of the last: `advance(plan)`, `expect_tokens(plan)`, then the
    next `schedule()`, and only then append and `finish`. The device runs steps in order, so the blocks of whoever
    leaves may be given to others at once.
    `block_tables` `[max_num_seqs, max_blocks]` int32 holds, in the row of a running sequence's seat, its blocks.
    `last_plan` is the newest one. `clock` returns the time in which deadlines are given, in seconds.
    """

    def __init__(
        self,
        pool: BlockPool,
        config: SchedulerConfig,
        *,
        swap: SwapSpace | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.pool = pool
        self.config = config
        self.counters = SchedulerCounters()
        self.cache_counters = CacheCounters()
        self.forecast = OutputForecast()
        self.pace = Pace(clock, self.forecast, max_num_batched_tokens=config.max_num_batched_tokens)
        self._seats = SeatMap(pool, config)
        self._gate = Gate(pool, self.forecast, admission=config.admission)
        self._victims = VictimChoice(
            pool, self._seats, self._gate, max_num_batched_tokens=config.max_num_batched_tokens
        )
        self.policy = make_policy(config.policy)
        find_prefix = self._seats.find_prefix
        self.policy.attach(
            SchedulerView(
                pace=self.pace,
                num_cached_tokens=lambda sequence: len(find_prefix(sequence)[0]) * pool.block_size,
                has_prefix_cache=config.enable_prefix_caching,
            )
        )
        self._swap = swap
        self._waiting = WaitingQueue(self.policy, max_passed_over=config.max_passed_over)
        self._running: list[Sequence] = []
        self._leaving: set[Sequence] = set()
        self._followers = Followers()
        self._live: dict[int, list[Sequence]] = {}
        self._log = DecisionLog(self.pace.now, self.counters)
        self.last_plan = StepPlan()
        self._num_departures = 0
        self._refused: tuple[Sequence, int] | None = None

    @property
    def block_tables(self) -> npt.NDArray[np.int32]:
        """Return the table that the seats fill in place; always the same array."""
        return self._seats.block_tables

    @property
    def num_running(self) -> int:
        """Return how many unfinished sequences have a seat."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return how many sequences wait, those that wait for their first sibling's prompt included."""
        return len(self._waiting) + len(self._followers)

    @property
    def has_work(self) -> bool:
        """Tell whether any sequence is unfinished."""
        return bool(self._live)

    def __contains__(self, sequence: Sequence) -> bool:
        """Tell whether the sequence has neither finished nor been aborted."""
        return sequence in self._live.get(sequence.request.request_id, ())

    def running_sequences(self) -> Iterable[Sequence]:
        """Return the sequences that have a seat, best first."""
        return tuple(self._running)

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Tell whether the pool, were it empty, has the blocks for that many computed tokens."""
        return num_blocks_for(num_tokens, self.pool.block_size) <= self.pool.capacity

    def new_decisions(self) -> list[Decision]:
        """Return the decisions since the last call, oldest first, as far as they are kept."""
        return self._log.pop_new()

    def decisions(self, request_id: int | None = None) -> list[Decision]:
        """Return the last decisions, oldest first: all that are kept, or a request's and why it waits now."""
        if request_id is None:
            return self._log.recent()
        waiting = [sequence for sequence in self._live.get(request_id, ()) if sequence in self._waiting]
        head = self._waiting.peek() if waiting else None
        behind = [
            self._log.decision(sequence, Reason.BEHIND, other=head)
            for sequence in waiting
            if head is not None and sequence is not head
        ]
        return self._log.of_request(request_id) + behind

    def add(self, sequences: list[Sequence]) -> None:
        """Take the children of one request. All but the first wait until the first has computed the shared prompt."""
        request_id = sequences[0].request.request_id
        assert request_id not in self._live, f"request {request_id} is already running"
        if not self._live:
            self.pace.pause()
        self._live[request_id] = list(sequences)
        now = self.pace.now()
        for sequence in sequences:
            sequence.times.queued_at = now
            if self._has_outgrown_its_angles(sequence):
                self._take_long_angles(sequence)
        first, others = sequences[0], sequences[1:]
        self._waiting.push(first)
        if others:
            self._followers.hold(others, leader=first)
            for sequence in others:
                self._log.record(sequence, Reason.SHARED_PREFIX, other=first)

    def abort(self, request_id: int, *, index: int | None = None) -> list[Sequence]:
        """Drop a request's unfinished sequences, or only child `index`, at once and return them.

        None of them when the request is unknown or finished.
        """
        sequences = [child for child in self._live.get(request_id, ()) if index is None or child.index == index]
        for sequence in reversed(sequences):  # the first child last: those that wait for it start when it goes
            self._withdraw(sequence)
            self._forget(sequence)
        return sequences

    def finish(self, sequence: Sequence) -> None:
        """End a sequence that had a seat when its last token was drawn; its blocks go back and stay findable."""
        self.forecast.observe(sequence)
        self._withdraw(sequence)
        self._forget(sequence)

    def schedule(self) -> StepPlan:
        """Hand out one step's token budget. The plan is empty only when nothing is left but tokens to be read."""
        plan = self.last_plan = StepPlan()
        if self.config.angles_change_after is not None:
            self._start_over()
        self._rank_again()
        self._yield_to_urgent()
        budget, has_preempted = self._schedule_running(plan, self.config.max_num_batched_tokens)
        if self._waiting and not has_preempted:
            self._schedule_waiting(plan, budget)
        if self._swap is not None:
            self._swap.hand_over(plan)
        return plan

    def draft_room(self) -> int:
        """Return how many drafts the next step has room for: what is left when each running sequence has all it needs.

        While others wait and could start, drafts get half of that.
        """
        needed = sum(sequence.num_due_tokens for sequence in self._running)
        rows = self.config.max_sampled_rows - len(self._running)
        room = max(0, min(rows, self.config.max_num_batched_tokens - needed))
        return room // 2 if self._waiting and self._seats.has_free_row else room

    def advance(self, plan: StepPlan) -> None:
        """Record that the plan's tokens are computed; blocks that they filled can be found from now on.

        The sampled tokens are already appended: what was computed beyond them are drafts that were not kept.
        """
        block_size = self.pool.block_size
        publishes = self._seats.has_prefix_cache
        num_blocks = num_written = 0
        for sequence, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
            computed = start + count
            if sequence.draft_token_ids:
                computed = min(computed, sequence.num_tokens - 1)
                sequence.draft_token_ids = []
            sequence.num_computed_tokens = computed
            seat = sequence.seat
            assert seat is not None, "a sequence without a seat is in a plan"
            num_blocks += len(seat.block_ids)
            num_written += computed
            if publishes and computed // block_size > seat.num_published_blocks:
                self._seats.publish(sequence)
        if self._swap is not None:
            self._swap.advance(plan)
        self._push_all(self._followers.release_ready())
        counters, cache = self.counters, self.cache_counters
        counters.num_steps += 1
        counters.num_seqs += len(plan.sequences)
        counters.num_computed_tokens += sum(plan.counts)
        cache.num_block_steps += self.pool.num_used
        cache.num_slot_steps += num_blocks * block_size
        cache.num_written_slot_steps += num_written
        self.pace.observe_step()
        self.policy.on_step(plan)

    def expect_tokens(self, plan: StepPlan) -> None:
        """Count the tokens that the device is drawing for the plan; `advance` comes before.

        Whoever has its last one drawn gives its seat up now, and ends with `finish` when the token is known.
        """
        for sequence, _ in plan.sampling():
            sequence.expect_token()
            if sequence.num_tokens >= sequence.max_total_tokens:
                self._leave(sequence)
                self._leaving.add(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, seats and queues add up; for tests and idle moments."""
        self._seats.check_integrity(self._seated())
        assert self._running == sorted(self._running, key=_rank), "the running sequences are out of order"
        waiting = [*self._waiting, *self._followers]
        assert all(sequence.seat is None for sequence in waiting), "a waiting sequence has a seat"
        held = sum(len(sequence.parked.host_block_ids) for sequence in waiting if sequence.parked is not None)
        assert self._swap is None or self._swap.num_free + held == self._swap.num_blocks, "a host block is lost"
        live = sorted(id(sequence) for group in self._live.values() for sequence in group)
        known = (*self._running, *waiting, *self._leaving)
        assert live == sorted(id(sequence) for sequence in known), "a sequence is lost"

    def _schedule_running(self, plan: StepPlan, budget: int) -> tuple[int, bool]:
        self._cut_drafts()
        has_preempted = False
        index = self._schedule_decodes(plan, budget)
        budget -= index
        while index < len(self._running) and budget > 0:
            sequence = self._running[index]
            count = min(sequence.num_uncomputed_tokens, budget)
            missing = self._seats.num_missing_blocks(sequence, count)
            if missing > self.pool.num_available and sequence.draft_token_ids:
                sequence.draft_token_ids = []  # a guess must not cost another sequence its blocks
                continue
            while missing > self.pool.num_available:
                # The list is in order, so the victim is never one that already has its share of this step.
                shortage = Shortage(num_needed_blocks=missing, num_available_blocks=self.pool.num_available)
                self._preempt(self._running[-1], Reason.PREEMPTED_FOR_BLOCKS, sequence, shortage=shortage)
                has_preempted = True
                if sequence.seat is None:
                    return budget, True
            if missing > 0:
                self._seats.grow(sequence, missing)
            plan.add(sequence, count)
            budget -= count
            index += 1
        return budget, has_preempted

    def _schedule_decodes(self, plan: StepPlan, budget: int) -> int:
        """Plan the first running sequences as far as each computes just its newest token; return how many.

        In most steps these are all or nearly all, and the general way takes several times as long for each.
        """
        block_size = self.pool.block_size
        starts = []
        for sequence in self._running[:budget]:
            start = sequence.num_computed_tokens
            if sequence.num_tokens - start != 1 or sequence.draft_token_ids:
                break
            if start % block_size == 0 and start == len(sequence.block_ids) * block_size:
                if not self.pool.num_available:
                    break
                self._seats.grow(sequence, 1)
            starts.append(start)
        plan.sequences = self._running[: len(starts)]
        plan.starts = starts
        plan.counts = [1] * len(starts)
        plan.num_sampled = [1] * len(starts)
        return len(starts)

    def _cut_drafts(self) -> None:
        """Leave as many drafts as there is room for, those of the best sequences first."""
        limit = self.config.angles_change_after
        drafting = [sequence for sequence in self._running if sequence.draft_token_ids]
        room = self.draft_room() if drafting else 0
        for sequence in drafting:
            if limit is not None and not sequence.has_long_angles:
                del sequence.draft_token_ids[limit - sequence.num_tokens :]
            del sequence.draft_token_ids[room:]
            room -= len(sequence.draft_token_ids)

    def _schedule_waiting(self, plan: StepPlan, budget: int) -> None:
        sharers: list[Sequence] = []
        num_rows = self.config.max_sampled_rows - sum(plan.num_sampled)  # drafts may leave fewer than there are seats
        while self._waiting and len(sharers) <= self.config.max_num_seqs:
            sequence = self._waiting.peek()
            is_step_full = budget <= 0 or num_rows <= 0
            if not self._seats.has_free_row or is_step_full:
                self._log.record_news(sequence, Reason.NO_BUDGET if is_step_full else Reason.NO_SEAT)
                break
            if self._refused == (sequence, self._num_departures):
                break  # looking again is for when somebody has left: nothing else makes room
            shared, position = self._seats.find_prefix(sequence)
            computer = self._computer_of_next(sequence, shared)
            if computer is not None:
                self._log.record_news(sequence, Reason.SHARED_PREFIX, other=computer)
                self._waiting.remove(sequence)
                sharers.append(sequence)
                continue
            shortage = self._gate.shortage(sequence, shared, self._running)
            if shortage is not None:
                self._refused = (sequence, self._num_departures)
                self._log.record_news(sequence, Reason.NO_BLOCKS, shortage=shortage)
                break
            self._start(sequence, shared, position)
            count = min(sequence.num_due_tokens, budget)
            self._seats.grow(sequence, self._seats.num_missing_blocks(sequence, count))
            plan.add(sequence, count)
            budget -= count
            num_rows -= plan.num_sampled[-1]
        self._push_all(sharers)

    def _computer_of_next(self, sequence: Sequence, shared: list[int]) -> Sequence | None:
        """Return whom the next one in the queue waits for, since it computes the block after the shared ones."""
        if self._waiting.is_turn_of_oldest:
            return None
        return self._seats.computer_of_next(sequence, len(shared))

    def _start_over(self) -> None:
        """Have those computed anew that have become too long for their angles."""
        for sequence in [running for running in self._running if self._has_outgrown_its_angles(running)]:
            self._take_long_angles(sequence)
            self._preempt(sequence, Reason.NEW_ANGLES)

    def _take_long_angles(self, sequence: Sequence) -> None:
        sequence.has_long_angles = True
        sequence.chain = self.pool.chain(sequence.request.tenant, has_long_angles=True)

    def _has_outgrown_its_angles(self, sequence: Sequence) -> bool:
        limit = self.config.angles_change_after
        return limit is not None and not sequence.has_long_angles and sequence.num_tokens > limit

    def _rank_again(self) -> None:
        """Put the running sequences in their present order, if it moves and this step may have to preempt."""
        most_blocks = len(self._running) + num_blocks_for(self.config.max_num_batched_tokens, self.pool.block_size)
        if self.policy.has_moving_ranks and self.pool.num_available < most_blocks:
            for sequence in self._running:
                sequence.rank = self._rank_of(sequence)
            self._running.sort(key=_rank)

    def _rank_of(self, sequence: Sequence) -> tuple[Any, ...]:
        return (not sequence.is_protected, *self.policy.rank(sequence))

    def _yield_to_urgent(self) -> None:
        """Preempt for who is next in the queue, if it may take others' seats and starts in this step only without them.

        Those that wait for a prefix are passed over as in `_schedule_waiting`; whom they wait for keeps its seat.
        """
        passed_over: list[Sequence] = []
        awaited: set[Sequence] = set()
        while self._waiting and self._running and len(passed_over) <= self.config.max_num_seqs:
            urgent = self._waiting.peek()
            if not self._may_take_seat(urgent, self._running[-1]):
                break
            shared, _ = self._seats.find_prefix(urgent)
            computer = self._computer_of_next(urgent, shared)
            if computer is None:
                self._send_out_for(urgent, shared, awaited)
                break
            awaited.add(computer)
            self._waiting.remove(urgent)
            passed_over.append(urgent)
        self._push_all(passed_over)

    def _send_out_for(self, urgent: Sequence, shared: list[int], awaited: set[Sequence]) -> None:
        def may_go(running: Sequence) -> bool:
            return running not in awaited and self._may_take_seat(urgent, running)

        for victim in self._victims.victims_for(urgent, shared, self._running, may_go):
            self._preempt(victim, Reason.PREEMPTED_FOR_URGENT, urgent)

    def _may_take_seat(self, urgent: Sequence, running: Sequence) -> bool:
        if running.is_protected or not self.policy.may_preempt(urgent, running):
            return False
        # Who is next for its age alone would not be after an older one has joined the queue.
        return not self._waiting.is_turn_of_oldest or urgent.request.arrival <= running.request.arrival

    def _start(self, sequence: Sequence, shared: list[int], position: int) -> None:
        """Seat the sequence that is next in the queue."""
        self._waiting.pop()
        self._seats.seat(sequence, shared, position)
        num_found = sequence.num_computed_tokens = len(shared) * self.pool.block_size
        self.cache_counters.num_looked_up_tokens += sequence.num_tokens
        self.cache_counters.num_cached_tokens += num_found
        if self._swap is not None:
            sequence.num_computed_tokens = max(num_found, self._swap.bring_back(sequence, self._seats))
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = min(num_found, sequence.num_prompt_tokens)
            sequence.times.started_at = self.pace.now()
        self.policy.on_seat(sequence)
        sequence.rank = self._rank_of(sequence)
        insort(self._running, sequence, key=_rank)
        self._log.record(sequence, Reason.STARTED)

    def _preempt(
        self, sequence: Sequence, reason: Reason, other: Sequence | None = None, *, shortage: Shortage | None = None
    ) -> None:
        self._log.record(sequence, reason, other=other, shortage=shortage)
        swap = self._swap if reason is not Reason.NEW_ANGLES else None  # that KV is of no use any more
        if swap is not None and swap.put_aside(sequence, block_size=self.pool.block_size):
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
        self._waiting.push(sequence)

    def _withdraw(self, sequence: Sequence) -> None:
        """Take a sequence from wherever it is; it may have been preempted since its last token was drawn."""
        if sequence.seat is not None:
            self._leave(sequence)
        elif sequence in self._leaving:
            self._leaving.remove(sequence)
        elif sequence in self._followers:
            self._followers.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._num_departures += 1
        self._seats.leave(sequence)

    def _seated(self) -> list[Sequence]:
        """Return who has a seat."""
        return self._running

    def _push_all(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._waiting.push(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self._push_all(self._followers.release(sequence))
        if self._swap is not None:
            self._swap.drop(sequence)
        request_id = sequence.request.request_id
        siblings = self._live[request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._live[request_id]
            self._log.forget(request_id)
