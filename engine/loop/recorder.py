"""Record a step's samples: append tokens, end finished sequences, report deltas. Independent of tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, field

from engine.grammars import output as grammar_output
from engine.loop.continuing import divide
from engine.outputs import BROKEN_ROW, FinishReason, SequenceTimes, TokenDelta, TokenLogprobs
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.seat_numbers import Int64, ints
from engine.stats import RequestCounters, Timings


@dataclass(frozen=True, slots=True)
class Appended:
    """A sequence that got tokens by itself, its delta, and how many the tokens are."""

    sequence: Sequence
    delta: TokenDelta
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The sequences that got tokens in a step: those `going_on`, as indices in the plan, and the others."""

    plan: StepPlan = field(default_factory=StepPlan)
    going_on: Int64 = field(default_factory=lambda: ints([]))
    others: list[Appended] = field(default_factory=list)


class Recorder:
    """Turn samples into deltas, and count reported tokens.

    A token that ends nothing is held in its sequence, for `release` or the sequence's next delta: in most steps there
    is nothing to report of most sequences.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._table = scheduler.seat_table
        self.timings = Timings()
        self.counters = RequestCounters()

    def append(self, plan: StepPlan, tokens: Int64, logprobs: dict[int, TokenLogprobs]) -> Recorded:
        """Append the samples to the plan's sequences. Aborted sequences are skipped."""
        division = divide(plan, self._table, tokens)
        rows = plan.rows[division.going_on]
        for index in division.going_on[self._table.append(rows, division.token_ids)].tolist():
            plan.sequences[index].settle()
        self._table.numbers.num_held_tokens[rows] += 1
        self.counters.num_output_tokens += len(rows)
        others = []
        for other in division.others:
            if other.sequence.is_live:
                own_tokens = tokens[other.samples.start : other.samples.stop].tolist()
                scores = [logprobs.get(row) for row in other.samples]
                num_later = len(rows) - other.num_going_on
                others.append(self._append_to(other.sequence, own_tokens, scores, num_later=num_later))
        return Recorded(plan, division.going_on, others)

    def report(self, recorded: Recorded) -> list[TokenDelta]:
        """Append tokens forced by grammars and end finished sequences; return what is due, failed siblings included.

        The scheduler has already advanced past the step, so the blocks that the step filled stay findable.
        """
        now = self._scheduler.pace.now()
        self._time_going_on(recorded, now=now)
        for one in recorded.others:
            sequence, delta = one.sequence, one.delta
            self._time_tokens(sequence, one.num_tokens, now=now)
            if sequence.matcher is not None and delta.finish_reason is None:
                self.count_forced(grammar_output.append_forced(sequence, delta))
            if delta.finish_reason is not None:
                self._finish(sequence, delta, now=now)
        deltas = [*self._watched(recorded), *(one.delta for one in recorded.others)]
        failed = [delta for delta in deltas if delta.finish_reason is FinishReason.ERROR]
        return deltas + [delta for one in failed for delta in self._fail_siblings(one)]

    def release(self) -> list[TokenDelta]:
        """Return the held tokens of the running sequences."""
        return [_delta_of(sequence) for sequence in self._scheduler.running_sequences() if sequence.num_held_tokens]

    def count_forced(self, count: int) -> None:
        """Count tokens that a grammar forced without sampling."""
        self.counters.num_forced_tokens += count
        self.counters.num_output_tokens += count

    def last_delta(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        error: str | None = None,
        good_rows_before: int | None = None,
    ) -> TokenDelta:
        """Count a sequence that ends for a reason other than its tokens; return its last delta, without a new token."""
        self.counters.num_finished += 1
        delta = _delta_of(sequence)
        delta.finish_reason, delta.error, delta.good_rows_before = reason, error, good_rows_before
        return delta

    def _watched(self, recorded: Recorded) -> list[TokenDelta]:
        """Return the deltas of those sequences going on whose tokens are reported as they come."""
        is_watched = self._table.numbers.is_watched[recorded.plan.rows[recorded.going_on]]
        sequences = recorded.plan.sequences
        return [_delta_of(sequences[index]) for index in recorded.going_on[is_watched.nonzero()].tolist()]

    def _time_going_on(self, recorded: Recorded, *, now: float) -> None:
        """Record that each sequence going on got a token at `now`; in most steps all had their last one together."""
        rows = recorded.plan.rows[recorded.going_on]
        last_ns, now_ns = self._table.numbers.last_token_ns, _nanoseconds(now)
        for before, count in Counter(last_ns[rows].tolist()).items():
            if before >= 0:
                self.timings.inter_token_latency.add((now_ns - before) / 1e9, count)
        for index in recorded.going_on[last_ns[rows] < 0].tolist():
            self._time_first_token(recorded.plan.sequences[index], now=now)
        last_ns[rows] = now_ns

    def _time_tokens(self, sequence: Sequence, num_tokens: int, *, now: float) -> None:
        """Record that a sequence got this many tokens at `now`."""
        if not num_tokens:
            return
        now_ns = _nanoseconds(now)
        if sequence.last_token_ns < 0:
            self._time_first_token(sequence, now=now)
        else:
            seconds = (now_ns - sequence.last_token_ns) / 1e9
            self.timings.inter_token_latency.add(seconds / num_tokens, num_tokens)
        sequence.last_token_ns = now_ns

    def _time_first_token(self, sequence: Sequence, *, now: float) -> None:
        times = sequence.times
        times.first_token_at = now
        self.timings.queue_time.add(times.started_at - times.arrived_at)
        self.timings.time_to_first_token.add(now - times.arrived_at)

    def _finish(self, sequence: Sequence, delta: TokenDelta, *, now: float) -> None:
        """End a sequence whose last delta this is."""
        if delta.is_broken:
            self._scheduler.forget_prefix(sequence)
        self._scheduler.finish(sequence)
        self.counters.num_finished += 1
        self.timings.e2e_latency.add(now - sequence.times.arrived_at)
        delta.times = _times_of(sequence, ended_at=now)

    def _fail_siblings(self, failed: TokenDelta) -> list[TokenDelta]:
        """End the other children of a failed request with the same error."""
        siblings = self._scheduler.abort(failed.request_id)
        return [
            self.last_delta(sequence, FinishReason.ERROR, error=failed.error, good_rows_before=failed.good_rows_before)
            for sequence in siblings
        ]

    def _append_to(
        self, sequence: Sequence, token_ids: list[int], logprobs: list[TokenLogprobs | None], *, num_later: int
    ) -> Appended:
        """Append the sampled tokens up to the first that differs from its draft or ends the sequence.

        `num_later` sequences behind it in the step have been counted already.
        """
        scored = sequence.prompt_logprobs
        is_scored = scored is None or _are_numbers(scored)
        delta = _delta_of(sequence)
        num_held = len(delta.token_ids)
        delta.prompt_logprobs = scored
        if scored is not None:
            sequence.prompt_logprobs = None  # reported once
            sequence.asks_more = sequence.records_more
        drafts = sequence.draft_token_ids
        for index, token_id in enumerate(token_ids):
            if token_id == BROKEN_ROW or not is_scored:
                self._break(delta, sequence, num_good=len(delta.token_ids) - num_held - num_later)
                break
            if not grammar_output.accept(sequence, token_id, delta):
                break
            end = sequence.append(token_id)
            delta.token_ids.append(token_id)
            if end is not None:
                delta.finish_reason, delta.stop_reason = end
            if end is not None or (index < len(drafts) and drafts[index] != token_id):
                break
        if (
            sequence.request.max_tokens == 0 and not delta.is_broken
        ):  # only its prompt's log-probabilities were requested
            delta.token_ids, delta.finish_reason, delta.stop_reason = [], FinishReason.LENGTH, None
        kept = len(delta.token_ids) - num_held
        delta.logprobs = [entry for entry in logprobs[:kept] if entry is not None] or None
        self.counters.num_output_tokens += kept
        return Appended(sequence, delta, kept)

    def _break(self, delta: TokenDelta, sequence: Sequence, *, num_good: int) -> None:
        """End the sequence of this delta: one of its rows is NaN or infinite.

        `num_good` rows before it are good beyond those counted so far.
        """
        counters = self.counters
        counters.num_broken += 1
        num_drawn = counters.num_output_tokens - counters.num_forced_tokens + num_good
        delta.finish_reason, delta.good_rows_before = FinishReason.ERROR, num_drawn
        delta.prompt_logprobs = None
        delta.error = (
            f"The model's arithmetic broke after {sequence.num_output_tokens:,} tokens: its logits are NaN or infinite."
        )


def _delta_of(sequence: Sequence) -> TokenDelta:
    """Return a sequence's next delta, with the tokens that it holds."""
    num_held, sequence.num_held_tokens = sequence.num_held_tokens, 0
    return TokenDelta(
        request_id=sequence.request.request_id,
        index=sequence.index,
        token_ids=sequence.token_ids[-num_held:] if num_held else [],
        num_cached_tokens=sequence.num_cached_tokens,
        num_preemptions=sequence.num_preemptions,
        num_swaps=sequence.num_swaps,
    )


def _are_numbers(scored: AnySequence[TokenLogprobs]) -> bool:
    """Tell whether rows of a prompt were good: one NaN or infinite logit makes its row's log-probabilities NaN."""
    return not any(math.isnan(entry.logprob) for entry in scored)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _times_of(sequence: Sequence, *, ended_at: float) -> SequenceTimes | None:
    times = sequence.times
    if times.first_token_at is None:
        return None
    return SequenceTimes(times.arrived_at, times.started_at, times.first_token_at, ended_at)
