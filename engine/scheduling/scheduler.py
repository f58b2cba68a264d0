"""The scheduler: which sequences compute how many tokens in each step. No torch, no text: counts and block ids only.

There are no phases. Every sequence has `num_computed_tokens` catching up with its tokens; a step hands out a token
budget, to running sequences first, then to waiting ones, and long prompts are cut into pieces. If a running sequence
needs a block and none is left, the one that the policy ranks last gives all of its blocks back and waits again; its
tokens are recomputed later, mostly from the prefix cache, or copied to host memory and back if that is cheaper.
A sequence that becomes so long that its model changes all of its keys' angles (longrope) is preempted likewise.
If other tenants compete, a sequence sits out a step when its tenant's grammars have used their share of the time.

A sequence whose prefix another one is computing in this step is skipped: in the next step it shares those blocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from engine.config import SchedulerConfig
from engine.scheduling.admission import Gate, Shortage
from engine.scheduling.blocks import BlockPool, num_blocks_for
from engine.scheduling.decisions import Decision, Reason
from engine.scheduling.grammar_shares import GrammarShares
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence, row_of
from engine.scheduling.roster import Roster
from engine.scheduling.seat_numbers import ints
from engine.scheduling.seat_table import SeatTable
from engine.scheduling.swap import SwapSpace
from engine.scheduling.victims import VictimChoice
from engine.scheduling.yielding import Yielding
from engine.stats import Sizes


class Scheduler:
    """Own every sequence from `add` to `finish` or `abort`, and the blocks they hold.

    Each step: `plan = schedule()`, compute it, append the sampled tokens, `advance(plan)`, `finish` those that ended.
    To plan a step while the device still draws the tokens of the last: `advance(plan)`, `expect_tokens(plan)`, then the
    next `schedule()`, and only then append and `finish`. The device runs steps in order, so the blocks of a sequence
    that leaves may be given to others at once. `last_plan` is the newest one. `clock` returns the time in which
    deadlines are given, in seconds.
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
        self.sizes = Sizes()
        self._roster = roster = Roster(pool, config, swap=swap, clock=clock)
        self.counters, self.cache_counters = roster.counters, roster.cache_counters
        self.forecast, self.pace, self.policy = roster.forecast, roster.pace, roster.policy
        self._running, self._waiting, self._seats = roster.running, roster.waiting, roster.seats
        self._gate = Gate(pool, self.forecast, admission=config.admission)
        victims = VictimChoice(pool, self._seats, self._gate, max_num_batched_tokens=config.max_num_batched_tokens)
        self._yielding = Yielding(roster, victims, max_num_seqs=config.max_num_seqs)
        self._grammar_shares = GrammarShares(self.policy.class_of)
        self._swap = swap
        self.last_plan = StepPlan()
        self._refused: tuple[Sequence, int] | None = None

    @property
    def seat_table(self) -> SeatTable:
        """Return the arrays of the running sequences' numbers and blocks, which are changed in place."""
        return self._seats.table

    @property
    def num_running(self) -> int:
        """Return how many unfinished sequences have a seat."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return how many sequences wait, including those that wait for their first sibling's prompt."""
        return self._roster.num_waiting

    @property
    def has_work(self) -> bool:
        """Tell whether any sequence is unfinished."""
        return self._roster.has_work

    def __contains__(self, sequence: Sequence) -> bool:
        """Tell whether the sequence has neither finished nor been aborted."""
        return sequence.is_live

    def has_request(self, request_id: int) -> bool:
        """Tell whether any sequence of a request is unfinished."""
        return bool(self._roster.unfinished(request_id))

    def running_sequences(self) -> Iterable[Sequence]:
        """Return the sequences that have a seat, best first."""
        return tuple(self._running)

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Tell whether the empty pool would have the blocks for that many computed tokens."""
        return num_blocks_for(num_tokens, self.pool.block_size) <= self.pool.capacity

    def new_decisions(self) -> list[Decision]:
        """Return the kept decisions since the last call, oldest first."""
        return self._roster.log.pop_new()

    def decisions(self, request_id: int | None = None) -> list[Decision]:
        """Return the last decisions, oldest first: all that are kept, or a request's and why it waits now."""
        return self._roster.decisions(request_id)

    def add(self, sequences: list[Sequence]) -> None:
        """Add the children of one request. All but the first wait until the first has computed the shared prompt."""
        self._roster.add(sequences)

    def abort(self, request_id: int, *, index: int | None = None) -> list[Sequence]:
        """Drop a request's unfinished sequences, or only child `index`, at once and return them.

        Returns none if the request is unknown or finished.
        """
        sequences = [child for child in self._roster.unfinished(request_id) if index is None or child.index == index]
        for sequence in reversed(sequences):  # the first child last: sequences that wait for it start when it goes
            self._roster.remove(sequence)
        return sequences

    def forget_prefix(self, sequence: Sequence) -> None:
        """Make the blocks that a sequence has filled unfindable, since they may hold NaN or infinity."""
        self._seats.forget_prefix(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence that had a seat when its last token was drawn; its blocks go back and stay findable."""
        self.forecast.observe(sequence)
        self.sizes.sequence_kv_tokens.add(sequence.num_computed_tokens)
        self._roster.remove(sequence)

    def schedule(self) -> StepPlan:
        """Hand out one step's token budget. The plan is empty only if nothing remains except tokens to be read."""
        plan = self.last_plan = StepPlan()
        if self.config.angles_change_after is not None:
            self._roster.start_over()
        self._roster.rank_again()
        self._yielding.yield_seats()
        awake, budget = self._awake(), self.config.max_num_batched_tokens
        budget, has_preempted = self._schedule_running(plan, awake, budget)
        if has_preempted and not plan.sequences:  # awake ones gave up their blocks to resting ones
            budget, _ = self._schedule_running(plan, self._running, budget)
        if self._waiting and not has_preempted:
            self._schedule_waiting(plan, budget)
        if self._swap is not None:
            self._swap.hand_over(plan)
        return plan

    def draft_room(self) -> int:
        """Return how many drafts the next step has room for: what the running sequences' due tokens leave.

        While others wait and could start, drafts get half of that.
        """
        numbers, running = self.seat_table.numbers, self._roster.rows
        needed = int((numbers.num_tokens[running] - numbers.num_computed_tokens[running]).sum())
        rows = self.config.max_sampled_rows - len(self._running)
        room = max(0, min(rows, self.config.max_num_batched_tokens - needed))
        return room // 2 if self._waiting and self._seats.has_free_row else room

    def advance(self, plan: StepPlan) -> None:
        """Record that the plan's tokens are computed; blocks that they filled can be found from now on.

        The sampled tokens are already appended: computed tokens beyond them are drafts that were not kept.
        """
        rows, num_computed = plan.rows, plan.starts + plan.counts
        table, numbers, block_size = self.seat_table, self.seat_table.numbers, self.pool.block_size
        assert table.hold(rows, plan.serials).all(), "a sequence without a seat is in a plan"
        drafting = numbers.num_drafts[rows].nonzero()[0]
        if drafting.size:
            num_computed[drafting] = np.minimum(num_computed[drafting], numbers.num_tokens[rows[drafting]] - 1)
            for index in drafting.tolist():
                plan.sequences[index].draft_token_ids = []
        numbers.num_computed_tokens[rows] = num_computed
        if self._seats.has_prefix_cache:
            for index in (num_computed // block_size > numbers.num_published_blocks[rows]).nonzero()[0].tolist():
                self._seats.publish(plan.sequences[index])
        if self._swap is not None:
            self._swap.advance(plan)
        self._roster.release_followers()
        counters, cache = self.counters, self.cache_counters
        counters.num_steps += 1
        counters.num_seqs += len(plan.sequences)
        num_tokens = int(plan.counts.sum())
        counters.num_computed_tokens += num_tokens
        self.sizes.step_sequences.add(len(plan.sequences))
        cache.num_block_steps += self.pool.num_used
        cache.num_slot_steps += int(numbers.num_blocks[rows].sum()) * block_size
        cache.num_written_slot_steps += int(num_computed.sum())
        seconds = plan.grammar_seconds
        self.pace.observe_step(num_tokens=num_tokens, grammar_seconds=sum(seconds.values()))
        self._grammar_shares.observe(seconds, self._running, step_seconds=self.pace.last_step_seconds)
        self.policy.on_step(plan)

    def expect_tokens(self, plan: StepPlan) -> None:
        """Count the tokens that the device is drawing for the plan; `advance` comes before.

        A sequence whose last token is being drawn gives its seat up now, and ends with `finish` when the token is
        known.
        """
        numbers, sampling = self.seat_table.numbers, plan.num_sampled.nonzero()[0]
        rows = plan.rows[sampling]
        self.seat_table.expect_tokens(rows)
        for index in sampling[numbers.num_tokens[rows] >= numbers.max_total_tokens[rows]].tolist():
            self._roster.leave_drawn(plan.sequences[index])

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, seats and queues are consistent; for tests and idle moments."""
        self._roster.check_integrity(self._seated())

    def _seated(self) -> list[Sequence]:
        return self._running

    def _schedule_running(self, plan: StepPlan, running: list[Sequence], budget: int) -> tuple[int, bool]:
        self._cut_drafts()
        has_preempted = False
        index = self._schedule_fitting(plan, running, budget)
        budget -= int(plan.counts.sum())
        more: list[tuple[Sequence, int]] = []
        while index < len(running) and budget > 0:
            sequence = running[index]
            if sequence.seat is None:
                break  # preempted for an earlier one, like all that follow
            count = min(sequence.num_uncomputed_tokens, budget)
            missing = self._seats.num_missing_blocks(sequence, count)
            if missing > self.pool.num_available and sequence.num_drafts:
                sequence.draft_token_ids = []  # a guess must not cost another sequence its blocks
                continue
            while missing > self.pool.num_available:
                # The list is in order, so the victim never has tokens of this step yet.
                shortage = Shortage(num_needed_blocks=missing, num_available_blocks=self.pool.num_available)
                self._roster.preempt(self._running[-1], Reason.PREEMPTED_FOR_BLOCKS, sequence, shortage=shortage)
                has_preempted = True
                if sequence.seat is None:
                    self._add(plan, more)
                    return budget, True
            if missing > 0:
                self._seats.grow(sequence, missing)
            more.append((sequence, count))
            budget -= count
            index += 1
        self._add(plan, more)
        return budget, has_preempted

    def _schedule_fitting(self, plan: StepPlan, running: list[Sequence], budget: int) -> int:
        """Plan the leading sequences for which there are tokens and blocks; return how many.

        In nearly every step these are all: only a lack of blocks needs a choice.
        """
        rows = self._roster.rows if running is self._running else ints(list(map(row_of, running)))
        numbers = self.seat_table.numbers
        due = numbers.num_tokens[rows] + numbers.num_drafts[rows] - numbers.num_computed_tokens[rows]
        counts = np.minimum(due, np.maximum(budget - due.cumsum() + due, 0))
        missing = self._seats.missing_blocks(rows, counts)
        fits = (counts > 0) & (missing.cumsum() <= self.pool.num_available)
        num_fitting = len(rows) if fits.all() else int(fits.argmin())
        rows, counts, missing = rows[:num_fitting], counts[:num_fitting], missing[:num_fitting]
        growing = missing.nonzero()[0]
        if growing.size:
            self._seats.grow_rows(rows[growing], missing[growing])
        plan.add(self.seat_table, running[:num_fitting], rows, counts)
        return num_fitting

    def _add(self, plan: StepPlan, more: list[tuple[Sequence, int]]) -> None:
        """Plan that many tokens of each of these sequences."""
        if more:
            sequences = [sequence for sequence, _ in more]
            counts = ints([count for _, count in more])
            plan.add(self.seat_table, sequences, ints(list(map(row_of, sequences))), counts)

    def _awake(self) -> list[Sequence]:
        """Return the running sequences except those that sit this step out; their drafts are dropped."""
        resting = self._grammar_shares.resting(self._running)
        for sequence in resting:
            sequence.draft_token_ids = []
        return [running for running in self._running if running not in resting] if resting else self._running

    def _cut_drafts(self) -> None:
        """Cut drafts to the available room; the best sequences keep theirs first."""
        drafts = self.seat_table.numbers.num_drafts[self._roster.rows]
        if not drafts.any():
            return
        room, limit = self.draft_room(), self.config.angles_change_after
        for index in drafts.nonzero()[0].tolist():
            sequence = self._running[index]
            most = room
            if limit is not None and not sequence.has_long_angles:
                most = min(room, limit - sequence.num_tokens)
            sequence.draft_token_ids = sequence.draft_token_ids[:most]
            room -= sequence.num_drafts

    def _schedule_waiting(self, plan: StepPlan, budget: int) -> None:
        sharers: list[Sequence] = []
        started: list[tuple[Sequence, int]] = []
        num_rows = self.config.max_sampled_rows - int(plan.num_sampled.sum())  # drafts may leave fewer than seats
        while self._waiting and len(sharers) <= self.config.max_num_seqs:
            sequence = self._waiting.peek()
            is_step_full = budget <= 0 or num_rows <= 0
            if not self._seats.has_free_row or is_step_full:
                self._roster.log.record_news(sequence, Reason.NO_BUDGET if is_step_full else Reason.NO_SEAT)
                break
            if self._refused == (sequence, self._roster.num_departures):
                break  # only a sequence that leaves makes room
            shared, position = self._seats.find_prefix(sequence)
            computer = self._roster.computer_of_next(sequence, shared)
            if computer is not None:
                self._roster.log.record_news(sequence, Reason.SHARED_PREFIX, other=computer)
                self._waiting.remove(sequence)
                sharers.append(sequence)
                continue
            shortage = self._gate.shortage(sequence, shared, self._running)
            if shortage is not None:
                self._refused = (sequence, self._roster.num_departures)
                self._roster.log.record_news(sequence, Reason.NO_BLOCKS, shortage=shortage)
                break
            self._roster.start(sequence, shared, position)
            count = min(sequence.num_due_tokens, budget)
            self._seats.grow(sequence, self._seats.num_missing_blocks(sequence, count))
            started.append((sequence, count))
            budget -= count
            num_rows -= count == sequence.num_due_tokens
        self._add(plan, started)
        self._roster.wait(sharers)
