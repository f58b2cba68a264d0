"""What comes next for a document, given what was answered about it: its next stage, and the lines that ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from features.documents.courses import questions
from features.documents.courses.questions import GroundingKeys
from features.documents.extraction.course.job import ExtractJob
from features.documents.progress import DocumentProgress
from features.documents.stages import ASKING, OPTIONAL, DocumentStage, node_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next stage of a document."""

    stage: DocumentStage
    lines: list[bytes]
    round_no: int = 1
    """Of the stages of a round."""

    @property
    def node(self) -> int:
        """Return the number of its node."""
        return node_number(self.stage, self.round_no)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSteps:
    """The steps of an extraction's documents; what it may still do is the same for all of them."""

    job: ExtractJob
    keys: GroundingKeys
    first_questions: Callable[[DocumentProgress], list[bytes]]
    may_ask: bool
    """Whether the model is still asked."""
    has_room: bool
    """Whether stages that only improve records still begin."""

    def after(self, stage: DocumentStage, one: DocumentProgress) -> Step | None:
        """Return the next step of a document whose lines at a stage are all answered; None: it is over."""
        step = self._after(stage, one)
        if step is None or not step.lines:
            return None
        is_left_out = (step.stage in ASKING and not self.may_ask) or (step.stage in OPTIONAL and not self.has_room)
        return None if is_left_out else step

    def without_room(self, step: Step, one: DocumentProgress) -> Step | None:
        """Return what follows where a step's batch takes no further line.

        Without a round a document is grounded again: its record notes that, and later rounds still ask about it.
        """
        if step.stage is not DocumentStage.ASK_AGAIN:
            return None
        return self._grounded_again(replace(one, again=[*one.again, {}]))

    def _after(self, stage: DocumentStage, one: DocumentProgress) -> Step | None:
        match stage:
            case DocumentStage.READ:
                return Step(stage=DocumentStage.ASK, lines=self.first_questions(one)) if self.may_ask else None
            case DocumentStage.ASK:
                return self._grounded(DocumentStage.GROUND, one) if one.problem() is None else None
            case DocumentStage.ASK_AGAIN:
                return self._grounded_again(one)
            case DocumentStage.ASK_COVERED:
                return self._grounded(DocumentStage.GROUND_COVERED, one)
            case DocumentStage.GROUND_COVERED:
                return None
        return self._asked_further(one)

    def _asked_further(self, one: DocumentProgress) -> Step | None:
        if one.doubts and self.job.passes.again:
            lines = questions.further_questions(one, self.job, one.doubts)
            return Step(stage=DocumentStage.ASK_AGAIN, lines=lines, round_no=len(one.again) + 1)
        lines = questions.further_questions(one, self.job, one.covered_questions)
        return Step(stage=DocumentStage.ASK_COVERED, lines=lines)

    def _grounded(self, stage: DocumentStage, one: DocumentProgress) -> Step:
        return Step(stage=stage, lines=[questions.grounding(one, self.keys)])

    def _grounded_again(self, one: DocumentProgress) -> Step:
        return replace(self._grounded(DocumentStage.GROUND_AGAIN, one), round_no=len(one.again))
