"""Decide, step by step, which sequences compute how many tokens. No torch, no text: counts and block ids only.

There are no phases. Every sequence has `num_computed_tokens` catching up with its tokens; a step hands out a token
budget, to running sequences first, then to waiting ones, and long prompts are cut into chunks. When a running sequence
needs a block and none is left, the worst one (worst priority, then latest arrival) gives all of its blocks back and
waits at the head of its priority; its tokens are computed again later, mostly from the prefix cache.

In static batching a batch is formed only when the last one has ended completely; finished sequences keep their seat and
their blocks until then.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from engine.admission import OutputForecast, peak_blocks
from engine.blocks import NO_PARENT, BlockPool, num_blocks_for
from engine.config import Admission, Batching
from engine.plan import SchedulerCounters, SchedulerLimits, StepPlan
from engine.request import Sequence
from engine.waiting import WaitingLine


class Scheduler:
    """Own every sequence from `add` to `finish` or `abort`, and the blocks they hold.

    Each step: `plan = schedule()`, compute it, `advance(plan)`, append the sampled tokens, `finish` those that ended.
    `block_tables` `[max_num_seqs, max_blocks]` int32 holds, in a running sequence's `row`, its blocks.
    """

    def __init__(
        self,
        pool: BlockPool,
        limits: SchedulerLimits,
        *,
        enable_prefix_caching: bool = True,
        batching: Batching = Batching.CONTINUOUS,
        admission: Admission = Admission.PEAK,
    ) -> None:
        self.pool = pool
        self.limits = limits
        self.counters = SchedulerCounters()
        self.forecast = OutputForecast()
        self._has_prefix_cache = enable_prefix_caching
        self._batching = batching
        self._admission = admission
        self._waiting = WaitingLine()
        self._running: list[Sequence] = []
        self._padding: list[Sequence] = []
        self._followers: dict[Sequence, list[Sequence]] = {}
        self._live: dict[int, list[Sequence]] = {}
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        max_blocks = min(num_blocks_for(limits.max_model_len, pool.block_size), pool.capacity)
        self.block_tables: npt.NDArray[np.int32] = np.zeros((limits.max_num_seqs, max_blocks), dtype=np.int32)

    @property
    def num_running(self) -> int:
        """Return how many unfinished sequences have a seat."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Return how many sequences wait, those that wait for their first sibling's prompt included."""
        return len(self._waiting) + sum(len(group) for group in self._followers.values())

    @property
    def has_work(self) -> bool:
        """Tell whether any sequence is unfinished."""
        return bool(self._live)

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Tell whether the pool, were it empty, has the blocks for that many computed tokens."""
        return num_blocks_for(num_tokens, self.pool.block_size) <= self.pool.capacity

    def add(self, sequences: list[Sequence]) -> None:
        """Take the children of one request. All but the first wait until the first has computed the shared prompt."""
        request_id = sequences[0].request.request_id
        assert request_id not in self._live, f"request {request_id} is already running"
        self._live[request_id] = list(sequences)
        first, others = sequences[0], sequences[1:]
        self._waiting.push(first)
        if self._batching is Batching.STATIC:
            for sequence in others:
                self._waiting.push(sequence)
        elif others:
            self._followers[first] = others
            for sequence in others:
                sequence.leader = first

    def abort(self, request_id: int) -> list[Sequence]:
        """Drop a request's unfinished sequences at once and return them; none when it is unknown or finished."""
        sequences = list(self._live.get(request_id, ()))
        followers = {child for sequence in sequences for child in self._followers.pop(sequence, ())}
        for sequence in sequences:
            if sequence.is_running:
                self._leave(sequence)
            elif sequence not in followers:
                self._waiting.remove(sequence)
            self._forget(sequence)
        self._release_padding_if_done()
        return sequences

    def finish(self, sequence: Sequence) -> None:
        """End a running sequence; its blocks go back to the pool and stay findable."""
        self.forecast.observe(sequence)
        if self._batching is Batching.STATIC:
            self._running.remove(sequence)
            sequence.is_running = False
            self._padding.append(sequence)
        else:
            self._leave(sequence)
        self._forget(sequence)
        self._release_padding_if_done()

    def schedule(self) -> StepPlan:
        """Hand out one step's token budget. The plan is empty only when nothing is left to do."""
        plan = StepPlan(padding=list(self._padding))
        budget = self.limits.max_num_batched_tokens - len(plan.padding)
        if self._batching is Batching.STATIC:
            if not self._running and not self._padding:
                self._form_batch()
            self._schedule_running(plan, budget)
            return plan
        self._yield_to_urgent()
        budget, has_preempted = self._schedule_running(plan, budget)
        if not has_preempted:
            self._schedule_waiting(plan, budget)
        return plan

    def advance(self, plan: StepPlan) -> None:
        """Record that the plan's tokens are computed; blocks that they filled can be found from now on."""
        counters = self.counters
        block_size = self.pool.block_size
        for sequence, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
            sequence.num_computed_tokens = start + count
            counters.num_slots += len(sequence.block_ids) * block_size
            counters.num_written_slots += start + count
            if self._has_prefix_cache and (start + count) // block_size > sequence.num_published_blocks:
                self._publish(sequence)
            if sequence in self._followers and sequence.has_prompt_computed:
                self._release_followers(sequence)
        counters.num_steps += 1
        counters.num_seqs += len(plan.sequences)
        counters.num_computed_tokens += sum(plan.counts)
        counters.num_used_blocks += self.pool.num_used

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, seats and queues add up; for tests and idle moments."""
        holders = [*self._running, *self._padding]
        self.pool.check_integrity(block for sequence in holders for block in sequence.block_ids)
        rows = [sequence.row for sequence in holders] + self._free_rows
        assert sorted(rows) == list(range(self.limits.max_num_seqs)), "a row is lost or has two owners"
        assert self._running == sorted(self._running, key=lambda sequence: sequence.running_key)
        for sequence in holders:
            table = self.block_tables[sequence.row, : len(sequence.block_ids)]
            assert table.tolist() == sequence.block_ids, "the block table differs from the blocks owned"
        waiting = [*self._waiting, *(child for group in self._followers.values() for child in group)]
        assert not any(sequence.block_ids for sequence in waiting), "a waiting sequence holds blocks"
        live = sorted(id(sequence) for group in self._live.values() for sequence in group)
        assert live == sorted(id(sequence) for sequence in (*self._running, *waiting)), "a sequence is lost"

    def _schedule_running(self, plan: StepPlan, budget: int) -> tuple[int, bool]:
        has_preempted = False
        place = 0
        while place < len(self._running) and budget > 0:
            sequence = self._running[place]
            count = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            missing = self._num_missing_blocks(sequence, count)
            while missing > self.pool.num_available:
                # The list is in order, so the victim is never one that already has its share of this step.
                self._preempt(self._running[-1])
                has_preempted = True
                if not sequence.is_running:
                    return budget, True
            if missing > 0:
                self._own(sequence, self.pool.allocate(missing))
            plan.add(sequence, count)
            budget -= count
            place += 1
        return budget, has_preempted

    def _schedule_waiting(self, plan: StepPlan, budget: int) -> None:
        while self._waiting and budget > 0 and self._free_rows:
            sequence = self._waiting.peek()
            shared, position = self._find_prefix(sequence)
            if not self._has_room_for(sequence, shared):
                return
            self._waiting.pop()
            self._seat(sequence, shared, position)
            count = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            self._own(sequence, self.pool.allocate(self._num_missing_blocks(sequence, count)))
            plan.add(sequence, count)
            budget -= count

    def _form_batch(self) -> None:
        """Seat a whole static batch at once; its prompts may take several steps."""
        while self._waiting and self._free_rows:
            sequence = self._waiting.peek()
            shared, position = self._find_prefix(sequence)
            if not self._has_room_for(sequence, shared):
                return
            self._waiting.pop()
            self._seat(sequence, shared, position)

    def _yield_to_urgent(self) -> None:
        """Preempt while a strictly more urgent sequence waits that cannot start otherwise."""
        while self._waiting and self._running:
            urgent, worst = self._waiting.peek(), self._running[-1]
            if urgent.request.priority >= worst.request.priority:
                return
            if self._free_rows and self._has_room_for(urgent, self._find_prefix(urgent)[0]):
                return
            self._preempt(worst)

    def _has_room_for(self, sequence: Sequence, shared: list[int]) -> bool:
        pool = self.pool
        needed = num_blocks_for(sequence.num_tokens, pool.block_size) - len(shared) + pool.num_unowned(shared)
        if not self._running:
            # Alone it always fits (`can_ever_hold` was checked), so the line can never stand still.
            return needed <= pool.num_available
        if self._batching is Batching.STATIC or self._admission is Admission.PEAK:
            return needed <= pool.num_available and self._fits_to_the_end(sequence, len(shared))
        # One spare block per running sequence keeps a victim from coming back only to be preempted again.
        spare = len(self._running) if sequence.num_preemptions else 0
        return needed + spare <= pool.num_available

    def _fits_to_the_end(self, sequence: Sequence, num_shared: int) -> bool:
        block_size = self.pool.block_size
        group = [*self._running, sequence]
        if self._batching is Batching.STATIC:
            return sum(num_blocks_for(member.max_total_tokens, block_size) for member in group) <= self.pool.capacity
        return peak_blocks(group, self.forecast, block_size=block_size) - num_shared <= self.pool.capacity

    def _find_prefix(self, sequence: Sequence) -> tuple[list[int], int]:
        # At least one token must be computed, or there would be nothing to sample from.
        max_blocks = (sequence.num_tokens - 1) // self.pool.block_size
        if self._has_prefix_cache:
            return self.pool.match(sequence.chain, sequence.token_ids, max_blocks)
        leader = sequence.leader
        if leader is not None and leader.is_running and leader.has_prompt_computed:
            num_full = (sequence.num_prompt_tokens - 1) // self.pool.block_size
            return leader.block_ids[:num_full], NO_PARENT
        return [], NO_PARENT

    def _seat(self, sequence: Sequence, shared: list[int], position: int) -> None:
        self.pool.share(shared)
        sequence.row = self._free_rows.pop()
        sequence.is_running = True
        self._own(sequence, shared)
        sequence.num_computed_tokens = len(shared) * self.pool.block_size
        sequence.num_published_blocks = len(shared)
        sequence.chain_position = position
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        self.counters.num_cached_tokens += sequence.num_computed_tokens
        insort(self._running, sequence, key=lambda member: member.running_key)

    def _own(self, sequence: Sequence, blocks: list[int]) -> None:
        held = len(sequence.block_ids)
        self.block_tables[sequence.row, held : held + len(blocks)] = blocks
        sequence.block_ids.extend(blocks)

    def _num_missing_blocks(self, sequence: Sequence, count: int) -> int:
        beyond = sequence.num_computed_tokens + count - len(sequence.block_ids) * self.pool.block_size
        return num_blocks_for(beyond, self.pool.block_size) if beyond > 0 else 0

    def _publish(self, sequence: Sequence) -> None:
        for index in range(sequence.num_published_blocks, sequence.num_computed_tokens // self.pool.block_size):
            digest, content = sequence.chain.at(index, sequence.token_ids)
            sequence.chain_position = self.pool.publish(
                sequence.block_ids[index], digest=digest, content=content, parent=sequence.chain_position
            )
            sequence.num_published_blocks = index + 1

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.num_preemptions += 1
        sequence.num_computed_tokens = 0
        self.counters.num_preemptions += 1
        self.forecast.raise_after_preemption()
        self._waiting.push(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._vacate(sequence)
        sequence.is_running = False

    def _vacate(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
        self._free_rows.append(sequence.row)
        sequence.row = -1

    def _release_padding_if_done(self) -> None:
        if self._running:
            return
        for sequence in self._padding:
            self._vacate(sequence)
        self._padding.clear()

    def _release_followers(self, leader: Sequence) -> None:
        for sequence in self._followers.pop(leader, ()):
            self._waiting.push(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self._release_followers(sequence)
        request_id = sequence.request.request_id
        siblings = self._live[request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._live[request_id]

    def running_sequences(self) -> Iterable[Sequence]:
        """Return the sequences that have a seat, best first."""
        return tuple(self._running)
