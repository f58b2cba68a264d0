"""Checks, before any document is read, whether the documents of a collection can be asked."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy.orm import Session

from features.documents.collections import corpora
from features.documents.courses import questions
from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.course.job import ExtractJob
from features.documents.extraction.course.stored_plan import StoredPlan
from jobs import served_models
from jobs.batches.scan import Scan
from jobs.chunks import fleet
from jobs.counted import counted
from jobs.engines import served
from jobs.errors import InputError, TooLargeError
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.endpoints import LineKind
from jobs.lines.reading import RawLine
from jobs.settings import Settings


def require_askable(session: Session, plan: StoredPlan, *, num_documents: int, settings: Settings) -> None:
    """Raise TooLargeError if a batch cannot ask so many documents, InputError if it would refuse each line."""
    job = plan.job()
    lines = list(_lines(job, plan.corpus))
    _check_count(len(lines), num_documents, settings)
    scan = Scan(
        endpoint=CHAT_ENDPOINT,
        models=served_models.names_for(session, LineKind.GENERATE),
        kinds=served_models.kinds_by_name(session),
        contexts=fleet.contexts(session),
        engines=served.by_model(session),
        settings=settings,
    )
    for number, line in enumerate(lines):
        problem = scan.check(RawLine(line_no=number, byte_start=0, byte_end=len(line), content=line))
        if problem is not None:
            param = (problem.param or "").removeprefix("body.") or None
            problem_text = job.told({"code": problem.code, "message": problem.message})["message"]
            raise InputError(f"No document can be asked this: {problem_text}.", param=param, code=problem.code)


def _check_count(num_questions: int, num_documents: int, settings: Settings) -> None:
    num_lines = num_questions * num_documents
    if num_lines > settings.max_batch_lines:
        most = counted(settings.max_batch_lines // num_questions, "document")
        raise TooLargeError(
            f"{num_documents:,} documents with {num_questions:,} questions each are {num_lines:,} lines, and a batch "
            f"may have {settings.max_batch_lines:,}. Ask up to {most} "
            "in one extraction, for fewer fields, for more of them at once with max_fields, or without second_reading.",
            param="collection_id",
            code="too_many_lines",
        )


def _lines(job: ExtractJob, corpus: Corpus | None) -> Iterator[bytes]:
    """Return the first questions for an empty document, or for the index."""
    if corpus is not None:
        return corpora.questions(job, corpus, may_cut=lambda _query: True)
    return questions.of_document(job, 0, [""] * len(job.groups))
