"""What an extraction has found out about a document so far: the results of the lines that asked about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from features.documents.collections.snapshot import KeptDocument, custom_id, kept_documents
from features.documents.extraction.course import answers
from features.documents.extraction.course.line_results import TOO_LONG_CODE, Answers, LineResult
from features.documents.extraction.scoring.records import failed_record
from features.documents.stages import DocumentStage
from features.documents.tables import ExtractionDocument
from jobs.batches.ordered_results import OrderedResults
from jobs.lines.document_bodies import AskedLines
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
class Answered:
    """The lines that asked about a document at one stage."""

    stage: DocumentStage
    asked: AskedLines | None
    """Where their results are; None without lines."""
    lines: Mapping[str, Any]
    """Their result lines, by custom_id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentProgress:
    """Results of one document; None or empty for a stage that has not run or did not concern it."""

    number: int
    document: KeptDocument
    read: Outcome | None
    first: Sequence[LineResult] = ()
    """One per group, or empty."""
    second_readings: Mapping[int, LineResult] = field(default_factory=dict)
    """By group number, as in `covered`."""
    grounded: Outcome | None = None
    again: Sequence[Mapping[str, LineResult]] = ()
    """For each round of further questions to this document, by question key; empty where it had no room."""
    grounded_again: Sequence[Outcome | None] = ()
    """After each round."""
    covered: Mapping[int, LineResult] = field(default_factory=dict)
    grounded_covered: Outcome | None = None
    not_asked: Mapping[str, Any] = field(default_factory=dict)
    """The error of a document that was read but not asked."""
    is_open: bool = False
    """Whether lines that ask about it have no result yet."""
    asked: Mapping[DocumentStage, Sequence[AskedLines | None]] = field(default_factory=dict)
    """Where the results of each stage are, for each of its rounds."""

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
        if self.read is None:
            return _MISSING if self.not_asked is _NOT_ASKED else self.not_asked
        if self.read.error is not None:
            return self.read.error
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
        """Return the record while documents are asked; one that may still change has another status."""
        return {**self.record(), **({"status": PROVISIONAL} if self.is_open else {})}

    def _last_grounded(self) -> Outcome:
        later = (self.grounded_covered, *reversed(self.grounded_again))
        grounded = next((one for one in later if one is not None and one.error is None), self.grounded)
        return grounded or Outcome(error=_MISSING)


def progress_of(
    document: ExtractionDocument,
    answered: Sequence[Answered],
    *,
    num_groups: int,
    not_asked: Mapping[str, Any] | None = None,
) -> DocumentProgress:
    """Return the results of a document, from the lines at each node that it has been at.

    `not_asked` is the shared reason, if any, why documents that were read were not asked.
    """
    number = document.number
    of_stages: dict[DocumentStage, list[Answered]] = {}
    for each in answered:
        of_stages.setdefault(each.stage, []).append(each)

    def outcomes(stage: DocumentStage) -> list[Outcome | None]:
        lines = (each.lines.get(custom_id(number)) for each in of_stages.get(stage, ()))
        return [None if line is None else _outcome(line) for line in lines]

    def rounds(stage: DocumentStage) -> list[dict[str, LineResult]]:
        return [answers.of_round(each.lines, number) for each in of_stages.get(stage, ())]

    kept = KeptDocument(**document.document)
    first = next((each.lines for each in of_stages.get(DocumentStage.ASK, ())), {})
    return DocumentProgress(
        number=number,
        document=kept,
        read=Outcome() if kept.is_index else _only(outcomes(DocumentStage.READ)),
        first=answers.first(first, number, num_groups=num_groups),
        second_readings=answers.second_readings(first, number, num_groups=num_groups),
        grounded=_only(outcomes(DocumentStage.GROUND)),
        again=rounds(DocumentStage.ASK_AGAIN),
        grounded_again=outcomes(DocumentStage.GROUND_AGAIN),
        covered={int(key): result for each in rounds(DocumentStage.ASK_COVERED) for key, result in each.items()},
        grounded_covered=_only(outcomes(DocumentStage.GROUND_COVERED)),
        not_asked=not_asked or _NOT_ASKED,
        is_open=document.node is not None,
        asked={stage: [each.asked for each in of_stage] for stage, of_stage in of_stages.items()},
    )


def read_documents(storage: Storage, documents_key: str, files: StageFiles) -> Iterator[DocumentProgress]:
    """Yield documents that were only read, in their order, from the files of the batch that read them.

    Raises NotFoundError if a file is missing in the store.
    """
    both = [OrderedResults(storage, key) for key in (files.output_key, files.errors_key)]
    for number, document in kept_documents(storage, documents_key):
        line = next(filter(None, (results.take(custom_id(number)) for results in both)), None)
        yield DocumentProgress(
            number=number, document=document, read=None if line is None else _outcome(line), not_asked=_NOT_ASKED
        )


def _only(outcomes: Sequence[Outcome | None]) -> Outcome | None:
    return next(iter(outcomes), None)


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
