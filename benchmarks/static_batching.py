"""Static batches, a baseline for continuous ones: a batch starts when the previous one has ended completely.

The engine with another scheduler over the same seats and blocks; the kernels, the sampler and the loop are the same.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any

from engine.build import build_engine
from engine.config import Admission, EngineConfig, Speculation
from engine.loop.core import Engine
from engine.params import SamplingParams
from engine.scheduling.admission import Gate
from engine.scheduling.blocks import num_blocks_for
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request, Sequence
from engine.scheduling.scheduler import Scheduler


class Batching(StrEnum):
    """How sequences enter and leave."""

    CONTINUOUS = "continuous"
    """At every step."""
    STATIC = "static"
    """A whole batch at a time."""


def load_engine(config: EngineConfig, batching: Batching) -> Engine:
    """Load an engine. Static batches have no drafts, and each step waits for the tokens of the previous one."""
    if batching is Batching.CONTINUOUS:
        return build_engine(config)
    return build_engine(replace(config, speculation=Speculation.OFF, overlap=False), scheduler_type=StaticScheduler)


def batching_of(engine: Engine) -> Batching:
    """Return the engine's kind of batching."""
    return Batching.STATIC if isinstance(engine.scheduler, StaticScheduler) else Batching.CONTINUOUS


class StaticScheduler(Scheduler):
    """Seats a whole batch, and no further sequences until all of it has ended.

    A finished sequence keeps its seat and its blocks until then, and its row is still computed: a filler, last in the
    plan, recomputes its last token over the same context and into the same slot, and the sampled token is ignored.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = _WholeOutputGate(self.pool, self.forecast, admission=Admission.PEAK)
        self._filler_of: dict[Sequence, Sequence] = {}

    def add(self, sequences: list[Sequence]) -> None:
        """Add the children of one request; they do not wait for each other."""
        super().add(sequences)
        self._roster.release_followers_of(sequences[0])

    def abort(self, request_id: int, *, index: int | None = None) -> list[Sequence]:
        sequences = super().abort(request_id, index=index)
        self._end_batch_if_done()
        return sequences

    def finish(self, sequence: Sequence) -> None:
        """End a sequence; its blocks are freed with those of its batch."""
        self.forecast.observe(sequence)
        self._roster.stop(sequence)
        self._filler_of[sequence] = filler = _filler(sequence)
        self._pass_seat_on(sequence, filler)
        self._roster.forget(sequence)
        self._end_batch_if_done()

    def schedule(self) -> StepPlan:
        """Plan one step's token budget, of which each filler gets one token."""
        if not self._running:
            self._form_batch()
        plan = self.last_plan = StepPlan()
        self._schedule_running(plan, self._running, self.config.max_num_batched_tokens - len(self._filler_of))
        self._add(plan, [(filler, 1) for filler in self._filler_of.values()])
        return plan

    def draft_room(self) -> int:
        """Return 0: a static batch has no drafts."""
        return 0

    def advance(self, plan: StepPlan) -> None:
        """Record that the plan's tokens are computed, without those of fillers."""
        super().advance(plan.leading(len(plan.sequences) - len(self._filler_of)))

    def _form_batch(self) -> None:
        """Seat as many sequences as there is room for; their prompts may take several steps."""
        while self._waiting and self._seats.has_free_row:
            sequence = self._waiting.peek()
            shared, position = self._seats.find_prefix(sequence)
            if self._gate.shortage(sequence, shared, self._running) is not None:
                return
            self._roster.start(sequence, shared, position)

    def _pass_seat_on(self, sequence: Sequence, filler: Sequence) -> None:
        seat, num_blocks, num_published = sequence.seat, sequence.num_blocks, sequence.num_published_blocks
        assert seat is not None, "the sequence has no seat"
        self.seat_table.leave(sequence)
        self.seat_table.take(seat.row, filler, chain_position=seat.chain_position)
        filler.num_blocks, filler.num_published_blocks = num_blocks, num_published

    def _end_batch_if_done(self) -> None:
        if not self._running:
            for filler in self._filler_of.values():
                self._seats.leave(filler)
            self._filler_of.clear()

    def _seated(self) -> list[Sequence]:
        return [*self._running, *self._filler_of.values()]


class _WholeOutputGate(Gate):
    """Holds waiting sequences back unless the blocks of all outputs at full length fit."""

    def _peak(self, group: list[Sequence], num_shared: int) -> int:
        return sum(num_blocks_for(member.max_total_tokens, self._pool.block_size) for member in group)


def _filler(sequence: Sequence) -> Sequence:
    """Return a sequence that recomputes the last computed token of a finished one, for its seat."""
    request = Request(
        request_id=sequence.request.request_id,
        prompt_token_ids=sequence.token_ids[: sequence.num_computed_tokens],
        params=SamplingParams(temperature=0.0),
        max_tokens=1,
        seed=0,
        eos_token_ids=frozenset(),
        arrival=sequence.request.arrival,
    )
    filler = Sequence(request, sequence.index, sequence.chain)
    filler.num_computed_tokens = filler.num_tokens - 1
    filler.num_cached_tokens = sequence.num_cached_tokens
    return filler
