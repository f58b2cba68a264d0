"""Results of an extraction's stages so far, document by document, with only a piece of each file in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from features.documents.collections.snapshot import KeptDocument, custom_id, kept_documents
from features.documents.extraction.course.job import custom_id as question_id
from features.documents.extraction.course.line_results import TOO_LONG_CODE, Answers, LineResult, result_of
from features.documents.extraction.scoring.records import failed_record
from features.documents.stages import DocumentStage
from jobs.batches.ordered_results import OrderedResults
from jobs.storage import Storage

PROVISIONAL = "provisional"
"""Status of a record whose document is being asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFiles:
    """The keys of an ended batch's two files; None for a file that does not exist."""

    output_key: str | None = None
    errors_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a line that the service itself wrote."""

    body: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    """Its code, message and page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentProgress:
    """Results of one document; None or empty for a stage that has not run or did not concern it."""

    number: int
    document: KeptDocument
    read: Outcome | None
    first: Sequence[LineResult]
    """One per group, or empty."""
    second_readings: Mapping[int, LineResult]
    """By group number, as in `covered`."""
    grounded: Outcome | None
    again: Sequence[Mapping[str, LineResult]]
    """For each round of further questions, by question key."""
    grounded_again: Sequence[Outcome | None]
    """After each round; None for a round that did not ask about this document."""
    covered: Mapping[int, LineResult]
    grounded_covered: Outcome | None
    not_asked: Mapping[str, Any]
    """The error of a document that was read but not asked."""

    @property
    def sha256(self) -> str:
        return str(self.read.body.get("sha256", "")) if self.read is not None else ""

    @property
    def usage(self) -> dict[str, int]:
        of_groups = {"second_readings": self.second_readings, "covered": self.covered}
        return Answers(first=self.first, again=self.again, **of_groups).usage

    @property
    def doubts(self) -> Sequence[Mapping[str, Any]]:
        """Return the questions of the next round."""
        latest = self.grounded_again[-1] if self.grounded_again else self.grounded
        return latest.body.get("doubts", ()) if latest is not None else ()

    @property
    def covered_questions(self) -> Sequence[Mapping[str, Any]]:
        """Return the questions to ask with the found values covered."""
        questions: Sequence[Mapping[str, Any]] = self._last_grounded().body.get("covered", ())
        return questions

    def problem(self) -> Mapping[str, Any] | None:
        """Return the known reason why the document can have no fields, if any."""
        if self.read is None or self.read.error is not None:
            return _MISSING if self.read is None else self.read.error
        if not self.first:
            return self.not_asked
        errors = (result.error for result in self.first if result.error is not None)
        return next((error for error in errors if error["code"] != TOO_LONG_CODE), None)

    def record(self) -> dict[str, Any]:
        """Return the record; if a later grounding failed, use the result of the one before it."""
        problem = self.problem()
        if problem is None:
            grounded = self._last_grounded()
            if grounded.error is None:
                return {"document_id": self.document.id, **grounded.body["record"], "usage": self.usage}
            problem = grounded.error
        failed = failed_record(problem, name=self.document.name, sha256=self.sha256, usage=self.usage)
        return {"document_id": self.document.id, **failed}

    def provisional_record(self) -> dict[str, Any]:
        """Return the record while some documents are asked again; a record that may change has another status."""
        is_open = bool(self.covered_questions or (self.doubts and not self.again))
        return {**self.record(), **({"status": PROVISIONAL} if is_open else {})}

    def _last_grounded(self) -> Outcome:
        later = (self.grounded_covered, *reversed(self.grounded_again))
        grounded = next((one for one in later if one is not None and one.error is None), self.grounded)
        return grounded or Outcome(error=_MISSING)


class Progress:
    """Reads the results of the stages that have ended."""

    def __init__(
        self,
        storage: Storage,
        documents_key: str,
        stages: Sequence[tuple[DocumentStage, StageFiles]],
        *,
        num_groups: int,
        not_asked: Mapping[str, Any] | None = None,
    ) -> None:
        """`stages` are those that have begun, in order.

        `not_asked` is the shared reason, if any, why documents that were read were not asked.
        """
        self._storage = storage
        self._documents_key = documents_key
        self._stages = stages
        self._num_groups = num_groups
        self._not_asked = not_asked or _NOT_ASKED

    def documents(self) -> Iterator[DocumentProgress]:
        """Yield all documents in order. Raises NotFoundError if a file is missing in the store."""
        results = _Results(self._storage, self._stages)
        for number, document in kept_documents(self._storage, self._documents_key):
            name = custom_id(number)
            first, second_readings = self._first_answers(results.of(DocumentStage.ASK), number)
            yield DocumentProgress(
                number=number,
                document=document,
                read=Outcome() if document.is_index else results.of(DocumentStage.READ).outcome(name),
                first=[first[group] for group in range(self._num_groups)] if len(first) == self._num_groups else (),
                second_readings=second_readings,
                grounded=results.of(DocumentStage.GROUND).outcome(name),
                again=[each.answers(number) for each in results.rounds(DocumentStage.ASK_AGAIN)],
                grounded_again=[each.outcome(name) for each in results.rounds(DocumentStage.GROUND_AGAIN)],
                covered={
                    int(key): result for key, result in results.of(DocumentStage.ASK_COVERED).answers(number).items()
                },
                grounded_covered=results.of(DocumentStage.GROUND_COVERED).outcome(name),
                not_asked=self._not_asked,
            )

    def _first_answers(
        self, results: _StageResults, number: int
    ) -> tuple[dict[int, LineResult], dict[int, LineResult]]:
        """Return first answers and second readings, whose lines alternate."""
        first: dict[int, LineResult] = {}
        second_readings: dict[int, LineResult] = {}
        for group in range(self._num_groups):
            for results_by_group, is_second in ((first, False), (second_readings, True)):
                line = results.take(question_id(number, group, is_second_reading=is_second))
                if line is not None:
                    results_by_group[group] = result_of(line)
        return first, second_readings


class _Results:
    """The results of all stages, one entry per round for repeated stages."""

    def __init__(self, storage: Storage, stages: Sequence[tuple[DocumentStage, StageFiles]]) -> None:
        self._opened: dict[DocumentStage, list[_StageResults]] = {}
        for stage, files in stages:
            self._opened.setdefault(stage, []).append(_StageResults(storage, files))
        self._none = _StageResults(storage, StageFiles())

    def of(self, stage: DocumentStage) -> _StageResults:
        """Return the results of a stage that runs once."""
        return next(iter(self.rounds(stage)), self._none)

    def rounds(self, stage: DocumentStage) -> Sequence[_StageResults]:
        return self._opened.get(stage, ())


class _StageResults:
    """Results of one batch's lines, to be requested in file order."""

    def __init__(self, storage: Storage, files: StageFiles) -> None:
        self._both = [OrderedResults(storage, key) for key in (files.output_key, files.errors_key)]

    def take(self, name: str) -> Mapping[str, Any] | None:
        return self._both[0].take(name) or self._both[1].take(name)

    def outcome(self, name: str) -> Outcome | None:
        """Return the result of a line that the service itself wrote."""
        line = self.take(name)
        return None if line is None else _outcome(line)

    def answers(self, number: int) -> dict[str, LineResult]:
        """Return the results of a document's questions, by question key."""
        prefix = question_id(number, "")
        return {key: result_of(line) for file in self._both for key, line in file.take_all(prefix)}


def _outcome(line: Mapping[str, Any]) -> Outcome:
    body = (line.get("response") or {}).get("body") or {}
    error = line.get("error") or body.get("error")
    if error is None:
        return Outcome(body=body)
    return Outcome(
        error={"code": error.get("code") or "failed", "message": error["message"], "page": error.get("page")}
    )


_MISSING = {"code": "no_result", "message": "the batch of this stage has no result for the document"}
_NOT_ASKED = {
    "code": "not_asked",
    "message": "the document's text was deleted meanwhile, or is too long for one question",
}
