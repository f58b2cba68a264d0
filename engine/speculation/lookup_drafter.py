"""Speculative decoding: draft a sequence's next tokens from its own text, only where that makes the engine faster.

A step computes the drafts of a sequence together with its last token and samples a token after each, every one with its
own random number, a function of seed and position. It keeps these tokens up to and including the first that differs
from the draft at its place.

**The output does not change.** Rejection sampling (Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers
via Speculative Decoding", algorithm 1) accepts a draft x with probability min(1, p(x)/q(x)), else draws from
max(0, p − q), normalised; the tokens then follow the model's distribution p exactly. A draft from a lookup is certain,
q(x) = 1: it is accepted with probability p(x), else the token is drawn from p without x. Drawing a token from p and
keeping the draft if it is the same is equivalent; greedy is its limit. Since the draw uses the number that its position
would have used without drafts, even the tokens are those of a run without. Only rounding remains: the logits of a row
may differ in their last bits with the number of rows in the step, as they do with any other batch.

**Only where it pays.** A draft costs a row of the step: nearly nothing on a GPU with few sequences, almost a token's
worth where rows are the bottleneck. `LookupDrafter` learns from its steps what rows cost and how often drafts are
accepted (draft_value.py), drafts as far as that pays, and stops completely if the gain, search time included, is not
above zero. It then tries again after a while, less and less often. No token depends on any of this.

It is off by default. With the demo model (2 cores of an EPYC Zen 4, busy machine, 2026-11-21) one sequence took 26 %
fewer steps and 8 % less CPU time, but from 8 sequences on a row cost about what its draft was worth, and trying took 2
to 5 % of short runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.speculation.draft_value import Acceptance, Candidate, SpeculationCost, choose_counts
from engine.speculation.prompt_lookup import Match, PromptLookup, continuation
from engine.stats import SpeculationCounters

_FIRST_DRAFTS = 8
_NUM_PRIOR = 4.0
"""After this many expected drafts, a sequence's own record weighs as much as the rates of all."""

_TRIAL_STEPS = 8
"""Steps that must gain something together before drafting goes on."""
_FIRST_PAUSE = 32
_LONGEST_PAUSE = 1024
_PROBE_STEPS = 4
"""Drafting steps that are measured at any cost, each for few sequences and with few drafts."""
_PROBE_SEQUENCES = 8
_PROBE_DRAFTS = 64
_LONGEST_PROBE = 32
_GAIN_MEMORY = 32
"""Steps over which the gain is averaged."""


class _Drafting:
    """One running sequence: its index, its limit of drafts, and their acceptance compared with expectation."""

    __slots__ = ("lookup", "max_drafts", "num_expected", "num_hits")

    def __init__(self, lookup: PromptLookup, max_drafts: int) -> None:
        self.lookup = lookup
        self.max_drafts = max_drafts
        self.num_expected = 0.0
        self.num_hits = 0.0

    @property
    def trust(self) -> float:
        """Return the factor by which its first drafts are accepted more often than those of all sequences."""
        return (_NUM_PRIOR + self.num_hits) / (_NUM_PRIOR + self.num_expected)

    def observe(self, num_drafts: int, num_accepted: int, *, most: int) -> None:
        """Double the limit after all drafts were accepted; else reduce it halfway to the accepted number."""
        if num_accepted < num_drafts:
            self.max_drafts = max(1, (min(self.max_drafts, num_drafts) + num_accepted + 1) // 2)
        elif num_drafts == self.max_drafts:
            self.max_drafts = min(most, 2 * self.max_drafts)


@dataclass(frozen=True, slots=True)
class _Offer:
    """A sequence that could have drafts in the next step."""

    sequence: Sequence
    drafting: _Drafting
    match: Match
    candidate: Candidate


class LookupDrafter:
    """Set `draft_token_ids` of running sequences before a step, and learn from the step.

    `max_drafts` is the maximum for one sequence and step; matches are of `min_match` to `max_match` tokens. `clock`, in
    seconds, is read three times a step. Indexes exist for running sequences only, and only while drafts pay.
    """

    def __init__(
        self,
        *,
        max_drafts: int,
        min_match: int,
        max_match: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.counters = SpeculationCounters()
        self._max_drafts = max_drafts
        self._min_match = min_match
        self._max_match = max_match
        self._clock = clock
        self._cost = SpeculationCost()
        self._acceptance = Acceptance(max_match=max_match, max_drafts=max_drafts)
        self._switch = _Switch()
        self._draftings: dict[Sequence, _Drafting] = {}
        self._offers: dict[Sequence, _Offer] = {}
        self._started = 0.0
        self._search_seconds = 0.0
        self._has_searched = False

    @property
    def is_on(self) -> bool:
        """Tell whether drafting pays at present."""
        return self._switch.is_on

    def propose(self, sequences: Iterable[Sequence], room: int) -> None:
        """Add drafts to running sequences without any, up to `room` in total; the step follows at once.

        A sequence that still computes known tokens gets none, nor does one whose next token is its last.
        """
        began = self._clock()
        self._offers = {}
        running = list(sequences)
        ready = [sequence for sequence in running if sequence.num_uncomputed_tokens == 1]
        self._has_searched = bool(ready) and self._may_draft(len(ready))
        if self._has_searched:
            self._draftings = {one: self._draftings[one] for one in running if one in self._draftings}
            self._choose(ready, room - sum(len(sequence.draft_token_ids) for sequence in running))
        self._started = self._clock()
        self._search_seconds = self._started - began

    def learn(self, plan: StepPlan, num_kept: list[int]) -> None:
        """Learn from a step; `num_kept[i]` tokens were kept by the i-th sequence that sampled."""
        seconds = self._clock() - self._started
        num_drafts = num_accepted = 0
        for (sequence, num_sampled), kept in zip(plan.sampling(), num_kept, strict=True):
            offer = self._offers.get(sequence)
            if offer is not None and num_sampled > 1:
                num_gained = max(0, kept - 1)  # a failed sequence keeps nothing
                num_drafts += num_sampled - 1
                num_accepted += num_gained
                self._learn_of(offer, num_sampled - 1, num_gained)
        self.counters.num_drafted += num_drafts
        self.counters.num_accepted += num_accepted
        num_sequences = len(plan.sequences)
        if plan.counts.sum() == num_sequences + num_drafts and plan.num_sampled.all():
            self._cost.observe(num_sequences, num_drafts=num_drafts, seconds=seconds)
        if self._has_searched:
            self._judge(num_sequences, num_drafts, num_accepted)

    def _may_draft(self, num_sequences: int) -> bool:
        if self._cost.wants_plain(num_sequences):
            return False
        was_on = self._switch.is_on
        if not self._switch.allows_step():
            self._draftings.clear()
            return False
        if not was_on:
            self._cost.forget_drafts()
        return True

    def _choose(self, ready: list[Sequence], room: int) -> None:
        is_probe = self._switch.is_probing
        candidates = (self._offer(sequence) for sequence in (ready[:_PROBE_SEQUENCES] if is_probe else ready))
        offers = [offer for offer in candidates if offer is not None]
        plain_seconds = self._cost.plain_seconds(len(ready))
        assert plain_seconds is not None, "a step without drafts comes first"
        counts = choose_counts(
            [offer.candidate for offer in offers],
            self._acceptance.survival(),
            num_sequences=len(ready),
            plain_seconds=plain_seconds,
            row_seconds=0.0 if is_probe else self._cost.row_seconds(len(ready)),
        )
        room = min(room, _PROBE_DRAFTS) if is_probe else room
        best_first = sorted(zip(offers, counts, strict=True), key=lambda pair: -pair[0].candidate.chance)
        for offer, drafts in best_first:
            count = min(drafts, room)
            if count > 0:
                self._offers[offer.sequence] = offer
                offer.sequence.draft_token_ids = continuation(offer.sequence.token_ids, offer.match.end, count)
                room -= count

    def _offer(self, sequence: Sequence) -> _Offer | None:
        # The last token of a sequence is sampled and never computed, so a draft in its place would be useless.
        most = sequence.max_total_tokens - sequence.num_tokens - 1
        if most <= 0:
            return None
        drafting = self._draftings.get(sequence)
        if drafting is None:
            lookup = PromptLookup(min_match=self._min_match, max_match=self._max_match)
            drafting = self._draftings[sequence] = _Drafting(lookup, min(_FIRST_DRAFTS, self._max_drafts))
        match = drafting.lookup.find(sequence.token_ids)
        if match is None:
            return None
        chance = min(1.0, self._acceptance.first_chance(match.length) * drafting.trust)
        return _Offer(sequence, drafting, match, Candidate(chance, min(most, drafting.max_drafts)))

    def _learn_of(self, offer: _Offer, num_drafts: int, num_accepted: int) -> None:
        drafting = offer.drafting
        has_ended = offer.sequence.token_ids[-1] in offer.sequence.stop_token_ids
        if num_accepted == 0 and has_ended:
            return
        drafting.num_expected += self._acceptance.first_chance(offer.match.length)
        drafting.num_hits += num_accepted > 0
        if not has_ended:
            drafting.observe(num_drafts, num_accepted, most=self._max_drafts)
        self._acceptance.observe(
            offer.match.length, num_drafts=num_drafts, num_accepted=num_accepted, has_ended=has_ended
        )

    def _judge(self, num_sequences: int, num_drafts: int, num_accepted: int) -> None:
        """Report to the switch what this step's drafts gained, in seconds against a run without them."""
        plain_seconds = self._cost.plain_seconds(num_sequences)
        assert plain_seconds is not None, "a step without drafts comes first"
        gained = num_accepted * plain_seconds / num_sequences
        spent = num_drafts * self._cost.row_seconds(num_sequences) + self._search_seconds
        self._switch.observe(gained - spent, has_drafts=num_drafts > 0)


class _Switch:
    """On while drafts save time. When off, it waits, then probes the cost of rows, and tries again.

    A probe drafts for few sequences at any cost. A trial that gains nothing doubles the wait.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._num_probes_left = _PROBE_STEPS
        self._num_observed = 0
        self._gain_seconds = 0.0
        self._pause = _FIRST_PAUSE
        self._num_steps_left = 0

    @property
    def is_probing(self) -> bool:
        return self.is_on and self._num_probes_left > 0

    def allows_step(self) -> bool:
        """Tell whether the next step may have drafts."""
        if not self.is_on:
            self._num_steps_left -= 1
            if self._num_steps_left <= 0:
                self.is_on = True
                self._num_probes_left = _PROBE_STEPS
                self._num_observed = 0
                self._gain_seconds = 0.0
        return self.is_on

    def observe(self, gain_seconds: float, *, has_drafts: bool) -> None:
        """Add a step's gain; a mean of zero or less switches off."""
        self._num_observed += 1
        if self.is_probing:
            self._num_probes_left -= has_drafts
            if self._num_probes_left == 0:
                self._num_observed = 0
            elif self._num_observed >= _LONGEST_PROBE:
                self._turn_off(has_paid=False)
            return
        self._gain_seconds += (gain_seconds - self._gain_seconds) / min(self._num_observed, _GAIN_MEMORY)
        if self._num_observed >= _TRIAL_STEPS and self._gain_seconds <= 0.0:
            self._turn_off(has_paid=self._num_observed > _TRIAL_STEPS)

    def _turn_off(self, *, has_paid: bool) -> None:
        self._pause = _FIRST_PAUSE if has_paid else min(_LONGEST_PAUSE, 2 * self._pause)
        self._num_steps_left = self._pause
        self.is_on = False
