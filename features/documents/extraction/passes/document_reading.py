"""The combined answers about one document: findings, further questions, and the final values.

Takes texts of answers, returns findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from features.documents.extraction.documents.layout import LayoutText
from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.paths import Path
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.answers import read_answer
from features.documents.extraction.passes.asking_again import TOO_LONG, doubts, gaps, halves, parts, settle
from features.documents.extraction.passes.findings import Answer, Finding, ground_readings, relocate
from features.documents.extraction.passes.logprobs import with_logprobs
from features.documents.extraction.passes.merging import Merged, merge, record
from features.documents.extraction.passes.validators import Violation, violations


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReading:
    """The answer about one group of a document; spans of `findings` refer to the text that the prompt showed."""

    group: Group
    shown: LayoutText
    answer: Answer
    findings: tuple[Finding, ...]
    problem: str | None = None
    """Why there is no answer."""

    def gaps(self) -> dict[Path, str]:
        """Return the leaves that were asked but not answered, each with the reason."""
        return gaps(self.answer) if self.problem is None else dict.fromkeys(self.answer.missing, self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Leaves of one group that are asked again together."""

    group: int
    """The number of the group."""
    doubts: Mapping[Path, str]
    """The reason for each leaf."""
    num_halved: int = 0
    """How often the shown text is halved: once for each earlier question, about more leaves or with more text, that was
    too long."""


@dataclass(frozen=True, slots=True)
class _Passage:
    """The findings of an answer that still count, and the leaves it was asked for."""

    asked: Set[Path]
    findings: Sequence[Finding]
    shown: LayoutText

    def settled(self, group: Group, question: Question, again: Sequence[Finding]) -> _Passage:
        """Return the findings that still count beside the answer to a question about some of these leaves."""
        if not question.doubts.keys() <= self.asked:
            return self
        return replace(self, findings=settle(group, self.findings, again, question.doubts))


def _none(_shown: LayoutText) -> range:
    return range(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentReading:
    """The answers about a document: first answers, and rounds of further questions."""

    schema: FieldSchema
    first: tuple[GroupReading, ...]
    """One per group."""
    rounds: tuple[tuple[tuple[Question, GroupReading], ...], ...] = ()
    halvings: Callable[[LayoutText], range] = _none
    """For a group whose first question was too long: the numbers of halvings that leave less text than was shown, but
    some."""

    @property
    def is_answered(self) -> bool:
        """Tell whether there is any answer."""
        return any(one.problem is None for one in (*self.first, *(reading for _, reading in self._asked_again())))

    def questions(self) -> list[Question]:
        """Return the questions of the next round, in the order of groups.

        The first round asks everything doubtful once more. Leaves that an answer left out are asked in halves of their
        question, round after round, down to a single leaf; one that is still too long shows less and less text. So
        every round has smaller questions than the one before. Questions with less text come after the others.
        """
        if not self.rounds:
            return self._doubtful()
        before = sorted(self.rounds[-1], key=lambda asked: self._is_smallest(asked[0]))
        return [half for question, reading in before for half in self._smaller(question, reading)]

    def unanswered(self) -> dict[Path, str]:
        """Return the leaves without an answer, or without a complete list, each with the last reason."""
        reasons = {path: reason for one in self.first for path, reason in one.gaps().items()}
        for _question, reading in self._asked_again():
            missing = reading.gaps()
            paths = reasons.keys() & {leaf.path for leaf in reading.group.leaves}
            still = {path: missing[path] for path in paths & missing.keys()}
            reasons = {path: reason for path, reason in reasons.items() if path not in paths} | still
        return reasons

    def merged(self) -> list[Merged]:
        """Return each value of the record with its candidates; spans refer to the document's text."""
        by_group = [[_Passage({leaf.path for leaf in one.group.leaves}, one.findings, one.shown)] for one in self.first]
        for question, again in self._asked_again():
            group, before = self.first[question.group].group, by_group[question.group]
            kept = [one.settled(group, question, again.findings) for one in before]
            by_group[question.group] = [*kept, _Passage(question.doubts.keys(), again.findings, again.shown)]
        passages = [(one.findings, one.shown) for of_group in by_group for one in of_group]
        return merge(self.schema, [relocate(findings, shown.to_document) for findings, shown in passages])

    def _asked_again(self) -> Iterator[tuple[Question, GroupReading]]:
        return (question for asked_round in self.rounds for question in asked_round)

    def _doubtful(self) -> list[Question]:
        against = violations(self.schema, record(self.schema, self.merged()))
        return [
            question for number, one in enumerate(self.first) for question in self._doubtful_of(number, one, against)
        ]

    def _doubtful_of(self, number: int, one: GroupReading, against: Sequence[Violation]) -> list[Question]:
        """Return the first round's questions about a group: halves if any of its leaves was left out."""
        if one.problem is not None:
            return self._smaller(Question(group=number, doubts=one.gaps()), one)
        reasons = doubts(one.group, one.answer, one.findings, violations=against)
        questions = halves(one.group, reasons) if one.answer.missing else [reasons]
        return [Question(group=number, doubts=each) for each in questions if each]

    def _is_smallest(self, question: Question) -> bool:
        return len(parts(self.first[question.group].group, question.doubts)) == 1

    def _smaller(self, question: Question, reading: GroupReading) -> list[Question]:
        """Return questions for the leaves that an answer left out; none if the question was the smallest."""
        first, is_too_long = self.first[question.group], reading.problem == TOO_LONG
        missing = {path: reason for path, reason in reading.gaps().items() if path in question.doubts}
        num_halved = question.num_halved + is_too_long
        is_last = reading.problem not in (None, TOO_LONG)
        if self._is_smallest(question):
            is_last |= not is_too_long or first.problem is None
            halvings = range(0) if is_last else self.halvings(reading.shown)
            num_halved = max(num_halved, halvings.start)
            is_last |= num_halved not in halvings
        questions = [] if is_last else halves(first.group, missing)
        return [Question(group=question.group, doubts=half, num_halved=num_halved) for half in questions]


def read_group(
    text: str, group: Group, shown: LayoutText, *, quotes: bool, content: Sequence[Mapping[str, Any]] = ()
) -> GroupReading:
    """Read one answer, and ground its values in the text that the prompt showed.

    `content` is `logprobs.content` of the chat completion, if requested.
    """
    answer = read_answer(text, group, quotes=quotes)
    findings = ground_readings(answer.readings, group, shown.text if shown.own_text is None else shown.own_text)
    if content:
        findings = with_logprobs(findings, group, text, content)
    return GroupReading(group=group, shown=shown, answer=answer, findings=tuple(findings))


def no_reading(group: Group, shown: LayoutText, problem: str) -> GroupReading:
    """Return the reading of a question without an answer."""
    answer = Answer(readings=(), missing=tuple(leaf.path for leaf in group.leaves))
    return GroupReading(group=group, shown=shown, answer=answer, findings=(), problem=problem)
