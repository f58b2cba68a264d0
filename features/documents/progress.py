"""What the stages of an extraction have come to so far, document by document, in memory of a piece of each file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from features.documents.collections.snapshot import KeptDocument, custom_id, kept_documents
from features.documents.extraction.course.answers import TOO_LONG_CODE, Answers, LineResult, result_of
from features.documents.extraction.course.job import custom_id as question_id
from features.documents.extraction.scoring.records import failed_record
from features.documents.stages import Stage
from jobs.batches.ordered_results import OrderedResults
from jobs.storage import Storage

PROVISIONAL = "provisional"
"""The status of a record whose document is being asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFiles:
    """The keys of an ended batch's two files; None for one that it has not."""

    output_key: str | None = None
    errors_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a line that the service wrote for itself."""

    body: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    """Its code, message and page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentProgress:
    """One document; what no stage has done yet, or none was asked to do, is None or empty."""

    number: int
    document: KeptDocument
    read: Outcome | None
    first: Sequence[LineResult]
    """Of each group, or none at all."""
    second_readings: Mapping[int, LineResult]
    """By the number of the group, as `covered`."""
    grounded: Outcome | None
    again: Sequence[Mapping[str, LineResult]]
    """Of each round of further questions, by their keys."""
    grounded_again: Sequence[Outcome | None]
    """After each round; None of one that did not ask about this document."""
    covered: Mapping[int, LineResult]
    grounded_covered: Outcome | None
    not_asked: Mapping[str, Any]
    """The error of a document that was read and not asked."""

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
        """Return the questions that are to be put with the found values covered."""
        found: Sequence[Mapping[str, Any]] = self._last_grounded().body.get("covered", ())
        return found

    def problem(self) -> Mapping[str, Any] | None:
        """Return why the document can have no fields, as far as it is known."""
        if self.read is None or self.read.error is not None:
            return _MISSING if self.read is None else self.read.error
        if not self.first:
            return self.not_asked
        errors = (result.error for result in self.first if result.error is not None)
        return next((error for error in errors if error["code"] != TOO_LONG_CODE), None)

    def record(self) -> dict[str, Any]:
        """Return the record; where a later grounding failed, what the one before it found is all there is."""
        problem = self.problem()
        if problem is None:
            found = self._last_grounded()
            if found.error is None:
                return {"document_id": self.document.id, **found.body["record"], "usage": self.usage}
            problem = found.error
        failed = failed_record(problem, name=self.document.name, sha256=self.sha256, usage=self.usage)
        return {"document_id": self.document.id, **failed}

    def provisional_record(self) -> dict[str, Any]:
        """Return the record while some are asked more; one that may change by that has another status."""
        is_open = bool(self.covered_questions or (self.doubts and not self.again))
        return {**self.record(), **({"status": PROVISIONAL} if is_open else {})}

    def _last_grounded(self) -> Outcome:
        later = (self.grounded_covered, *reversed(self.grounded_again))
        found = next((one for one in later if one is not None and one.error is None), self.grounded)
        return found or Outcome(error=_MISSING)


class Progress:
    """Reads the results of the stages that have ended."""

    def __init__(
        self,
        storage: Storage,
        documents_key: str,
        stages: Sequence[tuple[Stage, StageFiles]],
        *,
        num_groups: int,
        not_asked: Mapping[str, Any] | None = None,
    ) -> None:
        """`stages` are those that have begun, in their order.

        `not_asked` is why documents that were read were not asked, where all of them share a reason.
        """
        self._storage = storage
        self._documents_key = documents_key
        self._stages = stages
        self._num_groups = num_groups
        self._not_asked = not_asked or _NOT_ASKED

    def documents(self) -> Iterator[DocumentProgress]:
        """Yield all documents in their order. Raises NotFoundError where the store has lost a file."""
        results = _Results(self._storage, self._stages)
        for number, document in kept_documents(self._storage, self._documents_key):
            name = custom_id(number)
            first, second_readings = self._first_answers(results.of(Stage.ASK), number)
            yield DocumentProgress(
                number=number,
                document=document,
                read=Outcome() if document.is_index else results.of(Stage.READ).outcome(name),
                first=[first[group] for group in range(self._num_groups)] if len(first) == self._num_groups else (),
                second_readings=second_readings,
                grounded=results.of(Stage.GROUND).outcome(name),
                again=[each.answers(number) for each in results.rounds(Stage.ASK_AGAIN)],
                grounded_again=[each.outcome(name) for each in results.rounds(Stage.GROUND_AGAIN)],
                covered={int(key): found for key, found in results.of(Stage.ASK_COVERED).answers(number).items()},
                grounded_covered=results.of(Stage.GROUND_COVERED).outcome(name),
                not_asked=self._not_asked,
            )

    def _first_answers(
        self, results: _StageResults, number: int
    ) -> tuple[dict[int, LineResult], dict[int, LineResult]]:
        """Return first answers and second readings, whose lines take turns."""
        first: dict[int, LineResult] = {}
        second_readings: dict[int, LineResult] = {}
        for group in range(self._num_groups):
            for found, is_second in ((first, False), (second_readings, True)):
                line = results.take(question_id(number, group, is_second_reading=is_second))
                if line is not None:
                    found[group] = result_of(line)
        return first, second_readings


class _Results:
    """The results of all stages, those of rounds once for each."""

    def __init__(self, storage: Storage, stages: Sequence[tuple[Stage, StageFiles]]) -> None:
        self._opened: dict[Stage, list[_StageResults]] = {}
        for stage, files in stages:
            self._opened.setdefault(stage, []).append(_StageResults(storage, files))
        self._none = _StageResults(storage, StageFiles())

    def of(self, stage: Stage) -> _StageResults:
        """Return those of a stage that comes once."""
        return next(iter(self.rounds(stage)), self._none)

    def rounds(self, stage: Stage) -> Sequence[_StageResults]:
        return self._opened.get(stage, ())


class _StageResults:
    """What lines of one batch came to, as long as they are asked for in their order."""

    def __init__(self, storage: Storage, files: StageFiles) -> None:
        self._both = [OrderedResults(storage, key) for key in (files.output_key, files.errors_key)]

    def take(self, name: str) -> Mapping[str, Any] | None:
        return self._both[0].take(name) or self._both[1].take(name)

    def outcome(self, name: str) -> Outcome | None:
        """Return what became of a line that the service wrote for itself."""
        line = self.take(name)
        return None if line is None else _outcome(line)

    def answers(self, number: int) -> dict[str, LineResult]:
        """Return what a document's questions came to, by their keys."""
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
    "message": "what was read of the document was deleted meanwhile, or is too long for one question",
}
