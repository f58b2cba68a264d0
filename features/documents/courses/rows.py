"""Where each document of an extraction is, and which lines asked about it: its row, and what these lines answered.

A document is at one node at a time, with consecutive lines in the batch of that node; it is over when none follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Executable, select, text
from sqlalchemy.orm import Session

from features.documents.collections.snapshot import KeptDocument
from features.documents.progress import Answered, DocumentProgress, progress_of
from features.documents.stages import stage_of
from features.documents.standing import Standing
from features.documents.tables import ExtractionDocument, ExtractionNode
from flows.results import Page
from jobs.chunks import result_ranges
from jobs.chunks.recording import copy_rows
from jobs.chunks.result_ranges import ResultRange
from jobs.lines.document_bodies import AskedLines
from jobs.partitions import batch_day
from jobs.tables import Batch

_NUMBER = re.compile(r"document-(\d+)")
_DOCUMENTS_A_PAGE = 200
UNDER_WAY = 256
"""Most documents that are read and not over, until as many are: the lines that end them come behind all those that are
to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The lines of a document in the batch of a node."""

    node: int
    """The number of the node."""
    first_line: int
    num_lines: int


def begin(
    session: Session, extraction_id: str, documents: Iterable[tuple[int, KeptDocument]], *, node: int, num_lines: int
) -> None:
    """Insert the documents of an extraction at its first node: the first ones with their lines, others wait."""

    def spans_of(number: int, document: KeptDocument) -> list[Span]:
        if document.is_index:
            return [Span(node=node, first_line=0, num_lines=0)]
        return [Span(node=node, first_line=number, num_lines=1)] if number < num_lines else []

    rows = ((number, document, spans_of(number, document)) for number, document in documents)
    insert(session, extraction_id, rows, node=node)


def insert(
    session: Session, extraction_id: str, documents: Iterable[tuple[int, KeptDocument, list[Span]]], *, node: int
) -> None:
    """Insert the documents of an extraction with the lines about them; each is at the node of the last or at `node`."""
    rows = (
        (extraction_id, number, document.to_json(), spans[-1].node if spans else node, _flat(spans))
        for number, document, spans in documents
    )
    copy_rows(session, "COPY extraction_document (extraction_id, number, document, node, spans) FROM STDIN", rows)


def number_of(custom_id: str) -> int | None:
    """Return the number of the document that a line is about."""
    match = _NUMBER.match(custom_id)
    return None if match is None else int(match[1])


def arrived(session: Session, node: ExtractionNode, batch: Batch, page: Page) -> list[ExtractionDocument]:
    """Return the documents at a node of whose lines this page answers the last ones."""
    numbers = {number for name in page.custom_ids if (number := number_of(name)) is not None}
    values = {
        "extraction_id": node.flow_id,
        "node": node.number,
        "numbers": sorted(numbers),
        "day": batch_day(batch.created_at),
        "batch_id": batch.id,
        "num_seen": page.num_seen,
    }
    return list(session.scalars(_ARRIVED, values))


def left_at(session: Session, node: ExtractionNode) -> list[ExtractionDocument]:
    """Return a page of the documents at a node that none of its lines asks about."""
    values = {"extraction_id": node.flow_id, "node": node.number, "limit": _DOCUMENTS_A_PAGE}
    return list(session.scalars(_LEFT, values))


def move(session: Session, extraction_id: str, moves: Mapping[int, Sequence[Span]]) -> None:
    """Move documents, by number, to the node of the last of these lines; without any they are over."""
    values = [
        {
            "extraction_id": extraction_id,
            "number": number,
            "node": spans[-1].node if spans else None,
            "spans": _flat(spans),
        }
        for number, spans in moves.items()
    ]
    if values:
        session.execute(_MOVE, values)


def waiting(session: Session, extraction_id: str) -> list[ExtractionDocument]:
    """Return the documents to read next: as many as may be under way, or none if that is only a few of those left."""
    counted = session.execute(_COUNT, {"extraction_id": extraction_id}).one()
    most = max(UNDER_WAY, counted.num_over)
    num_next = min(most - counted.num_under_way, counted.num_waiting)
    if num_next < min(most // 8, counted.num_waiting):
        return []
    return list(session.scalars(_WAITING, {"extraction_id": extraction_id, "limit": num_next}))


def is_any_waiting(session: Session, extraction_id: str) -> bool:
    """Return whether a document waits to be read."""
    return bool(session.execute(_COUNT, {"extraction_id": extraction_id}).one().num_waiting)


def is_any_open(session: Session, extraction_id: str) -> bool:
    """Return whether a document is not over."""
    return bool(session.scalar(_IS_OPEN, {"extraction_id": extraction_id}))


def page(session: Session, extraction_id: str, *, after: int, least_nodes: int = 0) -> list[ExtractionDocument]:
    """Return a page of the documents after a number that are over or have been at so many nodes, in order."""
    values = {"extraction_id": extraction_id, "after": after, "nodes": least_nodes, "limit": _DOCUMENTS_A_PAGE}
    return list(session.scalars(_PAGE, values))


def progress(
    session: Session, standing: Standing, documents: Sequence[ExtractionDocument]
) -> Iterator[DocumentProgress]:
    """Yield documents with what their lines answered so far; in one query."""
    stages = {node.number: stage_of(node) for node in standing.begun}
    batches = {node.number: standing.batch_of(node) for node in standing.begun}
    results = _results(session, batches, documents)
    for document in documents:
        answered = [
            Answered(
                stage=stages[span.node],
                asked=_asked_lines(span, batches[span.node]),
                lines=results.get((document.number, at), {}),
            )
            for at, span in enumerate(spans_of(document))
        ]
        yield progress_of(document, answered, num_groups=len(standing.job.groups), not_asked=standing.not_asked)


def spans_of(document: ExtractionDocument) -> list[Span]:
    """Return the lines that asked about a document, node by node."""
    triples = zip(document.spans[::3], document.spans[1::3], document.spans[2::3], strict=True)
    return [Span(node=node, first_line=first_line, num_lines=num_lines) for node, first_line, num_lines in triples]


def _flat(spans: Sequence[Span]) -> list[int]:
    return [each for span in spans for each in (span.node, span.first_line, span.num_lines)]


def _asked_lines(span: Span, batch: Batch | None) -> AskedLines | None:
    if batch is None or not span.num_lines:
        return None
    return AskedLines(batch_id=batch.id, first_line=span.first_line, num_lines=span.num_lines)


def _results(
    session: Session, batches: Mapping[int, Batch | None], documents: Sequence[ExtractionDocument]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the result lines by custom_id, for each document and position among its nodes; `batches` by node."""
    asked = {
        (document.number, at): ResultRange(
            batch_id=batch.id,
            day=batch_day(batch.created_at),
            first_line=span.first_line,
            num_lines=span.num_lines,
        )
        for document in documents
        for at, span in enumerate(spans_of(document))
        if (batch := batches[span.node]) is not None and span.num_lines
    }
    lines = result_ranges.read(session, list(asked.values()))
    return {
        place: {line["custom_id"]: line for line in map(orjson.loads, found)}
        for place, found in zip(asked, lines, strict=True)
    }


def _documents(query: str) -> Executable:
    """Return a query of documents, by its text from WHERE on."""
    return select(ExtractionDocument).from_statement(text(f"SELECT * FROM extraction_document {query}"))


_ARRIVED = _documents("""
    WHERE extraction_id = :extraction_id AND node = :node AND number = ANY(CAST(:numbers AS integer[]))
        AND spans[cardinality(spans)] = (
            SELECT count(*) FROM result
            WHERE batch_day = :day AND batch_id = :batch_id AND result_no <= :num_seen
                AND line_no >= spans[cardinality(spans) - 1]
                AND line_no < spans[cardinality(spans) - 1] + spans[cardinality(spans)]
        )
    ORDER BY number
""")

_LEFT = _documents("""
    WHERE extraction_id = :extraction_id AND node = :node AND spans[cardinality(spans)] = 0
    ORDER BY number LIMIT :limit
""")

_MOVE = text("""
    UPDATE extraction_document SET node = :node, spans = spans || CAST(:spans AS integer[])
    WHERE extraction_id = :extraction_id AND number = :number
""")

_IS_OPEN = text("""
    SELECT EXISTS (SELECT FROM extraction_document WHERE extraction_id = :extraction_id AND node IS NOT NULL)
""")

_COUNT = text("""
    SELECT count(*) FILTER (WHERE node IS NOT NULL AND spans <> '{}') AS num_under_way,
        count(*) FILTER (WHERE node IS NOT NULL AND spans = '{}') AS num_waiting,
        count(*) FILTER (WHERE node IS NULL) AS num_over
    FROM extraction_document WHERE extraction_id = :extraction_id
""")

_WAITING = _documents("""
    WHERE extraction_id = :extraction_id AND node IS NOT NULL AND spans = '{}'
    ORDER BY number LIMIT :limit
""")

_PAGE = _documents("""
    WHERE extraction_id = :extraction_id AND number > :after AND (node IS NULL OR cardinality(spans) >= :nodes * 3)
    ORDER BY number LIMIT :limit
""")
