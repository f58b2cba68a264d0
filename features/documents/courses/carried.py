"""Extractions that began when all documents took each stage together: where their documents are, from their lines.

The bridge to the baseline carries such extractions over with their nodes, which name no document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from sqlalchemy import update

from features.documents.claims import ExtractionWork
from features.documents.collections.snapshot import kept_documents
from features.documents.courses import rows
from features.documents.courses.rows import Span
from features.documents.stages import DocumentStage, stage_of
from features.documents.standing import Standing
from features.documents.tables import ExtractionNode
from jobs.lines.reading import custom_id_of, iter_lines
from jobs.settings import MIB
from jobs.storage import Storage

_MAX_LINE_BYTES = 64 * MIB  # far above any setting


def is_carried(work: ExtractionWork, standing: Standing) -> bool:
    """Return whether an extraction has begun and names no document."""
    if not standing.begun or standing.begun[0].num_seen is not None:
        return False
    with work.reading() as session:
        return not rows.page(session, standing.flow.id, after=-1)


def place(work: ExtractionWork, standing: Standing, storage: Storage, key_of: Callable[[str | None], str]) -> None:
    """Place each document at the last node with a line about it, and let every node be acted on again.

    What was asked is not asked again: a result counts only for a document that is at its node. `key_of` returns the
    object of a file.
    """
    spans: dict[int, list[Span]] = {}
    for node in standing.begun:
        batch = standing.batch_of(node)
        for number, span in _spans(work, storage, node, key_of(batch.input_file_id)) if batch is not None else ():
            of_document = spans.setdefault(number, [])
            if stage_of(node) is DocumentStage.GROUND_AGAIN and of_document[-1].node != node.number - 1:
                of_document.append(
                    Span(node=node.number - 1, first_line=0, num_lines=0)
                )  # the round had no room for it
            of_document.append(span)
    documents = list(kept_documents(storage, key_of(standing.flow.documents_file_id)))
    placed = [(number, document, spans.get(number) or [_unread(standing)]) for number, document in documents]
    with work.writing() as (session, extraction):
        rows.insert(session, extraction.id, placed, node=standing.begun[0].number)
        of_it = ExtractionNode.flow_id == extraction.id
        session.execute(update(ExtractionNode).where(of_it).values(num_seen=0, done_at=None))


def _spans(work: ExtractionWork, storage: Storage, node: ExtractionNode, key: str) -> Iterator[tuple[int, Span]]:
    """Yield the lines about each document in the input of a node's batch."""
    pieces = work.checked(storage.iter_chunks(key))
    lines = ((line.line_no, custom_id_of(line.content)) for line in iter_lines(pieces, max_line_bytes=_MAX_LINE_BYTES))
    for number, of_document in groupby(lines, key=lambda line: rows.number_of(line[1] or "")):
        numbers = [line_no for line_no, _ in of_document]
        if number is not None:
            yield number, Span(node=node.number, first_line=numbers[0], num_lines=len(numbers))


def _unread(standing: Standing) -> Span:
    return Span(node=standing.begun[0].number, first_line=0, num_lines=0)
