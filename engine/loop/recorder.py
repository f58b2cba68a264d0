"""Record a step's samples: append tokens, end finished sequences, report deltas. Independent of tensors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as AnySequence

from engine.grammars import output as grammar_output
from engine.loop.continuing import ContinuingSequences
from engine.outputs import BROKEN_ROW, FinishReason, SequenceTimes, TokenDelta, TokenLogprobs
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.scheduler import Scheduler
from engine.stats import RequestCounters, Timings


class Recorder:
    """Turn samples into deltas, and count reported tokens."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._continuing = ContinuingSequences()
        self.timings = Timings()
        self.counters = RequestCounters()

    def append(
        self, plan: StepPlan, tokens: list[int], logprobs: dict[int, TokenLogprobs]
    ) -> list[tuple[Sequence, TokenDelta]]:
        """Append the samples to the plan's sequences; return each with its delta. Aborted sequences are skipped."""
        appended: list[tuple[Sequence, TokenDelta]] = []
        for stretch in self._continuing.divide(plan, tokens):
            appended += self._go_on([pair for pair in stretch.going_on if pair[0].is_live])
            if stretch.other is not None and stretch.other[0].is_live:
                sequence, rows = stretch.other
                scores = [logprobs.get(row) for row in rows]
                appended.append((sequence, self._append_to(sequence, tokens[rows.start : rows.stop], scores)))
        return appended

    def report(self, appended: list[tuple[Sequence, TokenDelta]]) -> list[TokenDelta]:
        """Append tokens forced by grammars and end finished sequences; return all deltas, failed siblings included.

        The scheduler has already advanced past the step, so the blocks that the step filled stay findable.
        """
        now = self._scheduler.pace.now()
        self._time_tokens(appended, now=now)
        for sequence, delta in appended:
            if sequence.matcher is not None and delta.finish_reason is None:
                self.count_forced(grammar_output.append_forced(sequence, delta))
            if delta.finish_reason is not None:
                self._finish(sequence, delta, now=now)
        deltas = [delta for _, delta in appended]
        failed = [delta for delta in deltas if delta.finish_reason is FinishReason.ERROR]
        return deltas + [delta for one in failed for delta in self._fail_siblings(one)]

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
        """Count a sequence that ends for a reason other than its tokens; return its last delta, without a token."""
        self.counters.num_finished += 1
        delta = _delta_of(sequence, [])
        delta.finish_reason, delta.error, delta.good_rows_before = reason, error, good_rows_before
        return delta

    def _time_tokens(self, appended: list[tuple[Sequence, TokenDelta]], *, now: float) -> None:
        """Record that each sequence got its delta's tokens at `now`; in most steps all had their last ones together."""
        arrivals = Counter([(sequence.times.last_token_at, len(delta.token_ids)) for sequence, delta in appended])
        for (last_token_at, num_tokens), count in arrivals.items():
            if last_token_at is not None and num_tokens:
                self.timings.inter_token_latency.add((now - last_token_at) / num_tokens, num_tokens * count)
        for sequence, delta in appended:
            times = sequence.times
            if not delta.token_ids:
                continue
            if times.last_token_at is None:
                times.first_token_at = now
                self.timings.queue_time.add(times.started_at - times.arrived_at)
                self.timings.time_to_first_token.add(now - times.arrived_at)
            times.last_token_at = now

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

    def _go_on(self, drawn: list[tuple[Sequence, int]]) -> list[tuple[Sequence, TokenDelta]]:
        """Append to each sequence its token, which does not end it."""
        for sequence, token_id in drawn:
            sequence.go_on(token_id)
        self.counters.num_output_tokens += len(drawn)
        return [(sequence, _delta_of(sequence, [token_id])) for sequence, token_id in drawn]

    def _append_to(self, sequence: Sequence, token_ids: list[int], logprobs: list[TokenLogprobs | None]) -> TokenDelta:
        """Append the sampled tokens up to the first that differs from its draft or ends the sequence."""
        scored = sequence.prompt_logprobs
        is_scored = scored is None or _are_numbers(scored)
        delta = _delta_of(sequence, [])
        delta.prompt_logprobs = scored
        sequence.prompt_logprobs = None  # reported once
        drafts = sequence.draft_token_ids
        for index, token_id in enumerate(token_ids):
            if token_id == BROKEN_ROW or not is_scored:
                self._break(delta, sequence)
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
        kept = len(delta.token_ids)
        delta.logprobs = [entry for entry in logprobs[:kept] if entry is not None] or None
        self.counters.num_output_tokens += kept
        return delta

    def _break(self, delta: TokenDelta, sequence: Sequence) -> None:
        """End the sequence of this delta: one of its rows is NaN or infinite."""
        counters = self.counters
        counters.num_broken += 1
        num_drawn = counters.num_output_tokens - counters.num_forced_tokens + len(delta.token_ids)
        delta.finish_reason, delta.good_rows_before = FinishReason.ERROR, num_drawn
        delta.prompt_logprobs = None
        delta.error = (
            f"The model's arithmetic broke after {sequence.num_output_tokens:,} tokens: its logits are NaN or infinite."
        )


def _delta_of(sequence: Sequence, token_ids: list[int]) -> TokenDelta:
    return TokenDelta(
        request_id=sequence.request.request_id,
        index=sequence.index,
        token_ids=token_ids,
        num_cached_tokens=sequence.num_cached_tokens,
        num_preemptions=sequence.num_preemptions,
        num_swaps=sequence.num_swaps,
    )


def _are_numbers(scored: AnySequence[TokenLogprobs]) -> bool:
    """Tell whether rows of a prompt were good: one NaN or infinite logit makes its row's log-probabilities NaN."""
    return not any(math.isnan(entry.logprob) for entry in scored)


def _times_of(sequence: Sequence, *, ended_at: float) -> SequenceTimes | None:
    times = sequence.times
    if times.first_token_at is None:
        return None
    return SequenceTimes(times.arrived_at, times.started_at, times.first_token_at, ended_at)
