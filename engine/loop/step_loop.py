"""The step loop: plan a step, compute it, append its tokens, end finished sequences. No torch, text or clock.

The computing part is passed in: the engine's device, or a stand-in that counts or costs time. With overlap, step N + 1
is planned and started before the tokens of step N are known.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from engine.scheduling.plan import StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.speculation.drafter import Drafter

_Started = TypeVar("_Started")
_Drawn = TypeVar("_Drawn")
_Recorded = TypeVar("_Recorded")
_Reported_co = TypeVar("_Reported_co", covariant=True)


class Compute(Protocol[_Started, _Drawn, _Recorded, _Reported_co]):
    """Compute planned steps. `start` and `draw` need not wait for what they start; `record` does."""

    def start(self, plan: StepPlan, pending: _Drawn | None) -> _Started:
        """Start a step; `pending` is drawing tokens that the plan counts but whose values are unknown."""

    def draw(self, plan: StepPlan, started: _Started, rows: list[int] | None) -> _Drawn | None:
        """Start drawing the plan's tokens, from these of the rows that it sampled when it was started, or from all.

        Return None if nothing is sampled. All earlier tokens are known by now.
        """

    def record(self, plan: StepPlan, drawn: _Drawn | None) -> _Recorded:
        """Append the drawn tokens to the sequences that the scheduler still has."""

    def finish(self, recorded: _Recorded) -> _Reported_co:
        """End sequences that have their last token, and report; the scheduler has advanced past the step."""


class StepLoop(Generic[_Started, _Drawn, _Recorded, _Reported_co]):
    """Run steps of a scheduler. `drafter` drafts in each step; with overlap there must be none."""

    def __init__(
        self,
        scheduler: Scheduler,
        compute: Compute[_Started, _Drawn, _Recorded, _Reported_co],
        *,
        overlaps: bool = False,
        drafter: Drafter | None = None,
    ) -> None:
        assert drafter is None or not overlaps, "drafts need the last token on the host"
        self.overlaps = overlaps
        self.drafter = drafter
        self._scheduler = scheduler
        self._compute = compute
        self._in_flight: tuple[StepPlan, _Drawn] | None = None

    def step(self) -> _Reported_co | None:
        """Run one step; return `finish`'s report, with overlap that of the step before, None if that drew nothing."""
        if self.overlaps:
            return self._overlap()
        if self.drafter is not None:
            return self._draft(self.drafter)
        plan = self._scheduler.schedule()
        recorded = self._run(plan)
        self._scheduler.advance(plan)
        return self._compute.finish(recorded)

    def _run(self, plan: StepPlan) -> _Recorded:
        compute = self._compute
        return compute.record(plan, compute.draw(plan, compute.start(plan, None), None))

    def _draft(self, drafter: Drafter) -> _Reported_co:
        drafter.propose(self._scheduler.running_sequences(), self._scheduler.draft_room())
        plan = self._scheduler.schedule()
        recorded = self._run(plan)
        num_kept = plan.num_kept()
        self._scheduler.advance(plan)
        reported = self._compute.finish(recorded)
        drafter.learn(plan, num_kept)
        return reported

    def _overlap(self) -> _Reported_co | None:
        """Start a step, then record the one before, and only then draw.

        The device thus has the whole step to compute meanwhile, and grammars, penalties and bad words see all earlier
        tokens, as they do without overlap.
        """
        scheduler, compute = self._scheduler, self._compute
        plan = scheduler.schedule()
        before, self._in_flight = self._in_flight, None
        if not plan.sequences:
            return self._report(before)
        started = compute.start(plan, None if before is None else before[1])
        reported = self._report(before)
        drawn = compute.draw(plan, started, plan.prune(scheduler.seat_table))
        scheduler.advance(plan)  # also if all of its sequences have ended: it may have brought blocks back
        if drawn is not None:
            self._in_flight = plan, drawn
            scheduler.expect_tokens(plan)
        return reported

    def _report(self, before: tuple[StepPlan, _Drawn] | None) -> _Reported_co | None:
        return None if before is None else self._compute.finish(self._compute.record(*before))
