"""Where in the file of an extraction's records each document's lies, so that one is read without those before it.

Noted with the file, or when a record is first looked for in it.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from features.documents.lifecycle import lock_own
from features.documents.records import MAX_RECORD_BYTES, RecordsFile
from features.documents.tables import RecordRanges
from jobs.errors import NotFoundError
from jobs.lines.reading import iter_lines
from jobs.storage import Storage

_BUCKETS = 256
"""Most rows of an extraction: of 100,000 documents a row has 400, so it is read and written at once."""

ByteRange = tuple[int, int]
"""Of a record with its line end: where it begins, and where the next one does."""


def note(session: Session, extraction_id: str, ranges: Mapping[str, ByteRange]) -> None:
    """Write where the records of all documents lie, by the documents' ids; where it is written, nothing is done."""
    buckets: defaultdict[int, dict[str, ByteRange]] = defaultdict(dict)
    for document_id, found in ranges.items():
        buckets[_bucket(document_id)][document_id] = found
    rows = [{"extraction_id": extraction_id, "bucket": bucket, "ranges": inside} for bucket, inside in buckets.items()]
    if rows:
        session.execute(insert(RecordRanges).on_conflict_do_nothing(), rows)


def note_late(session: Session, tenant_id: str, extraction_id: str, ranges: Mapping[str, ByteRange]) -> None:
    """Write the same of a completed extraction of this tenant. Raises NotFoundError where it is deleted meanwhile."""
    lock_own(session, tenant_id, extraction_id)
    note(session, extraction_id, ranges)


def find(session: Session, extraction_id: str, document_id: str) -> ByteRange | None:
    """Return where the record of a document lies. Raises NotFoundError.

    None where nothing is noted of its bucket: the file has few documents and not this one, or was not looked into yet.
    """
    row = RecordRanges
    of_bucket = (row.extraction_id == extraction_id) & (row.bucket == _bucket(document_id))
    ranges = session.scalar(select(row.ranges).where(of_bucket))
    return None if ranges is None else range_of(ranges, document_id)


def range_of(ranges: Mapping[str, Any], document_id: str) -> ByteRange:
    """Return that of a document. Raises NotFoundError."""
    if document_id not in ranges:
        raise NotFoundError(f"The extraction has no document {document_id[:100]!r}.", param="document_id")
    start, end = ranges[document_id]
    return start, end


def read_all(storage: Storage, file: RecordsFile) -> dict[str, ByteRange]:
    """Return where all records of a file lie: reads it to its end."""
    found = {}
    for line in iter_lines(storage.iter_chunks(file.object_key), max_line_bytes=MAX_RECORD_BYTES):
        assert line.content is not None, "records are shorter"
        found[orjson.loads(line.content)["document_id"]] = (line.byte_start, line.byte_end)
    return found


def read_record(storage: Storage, file: RecordsFile, where: ByteRange) -> dict[str, Any]:
    """Return the record that lies there."""
    return dict(orjson.loads(storage.read_range(file.object_key, *where)))


def _bucket(document_id: str) -> int:
    return zlib.crc32(document_id.encode()) % _BUCKETS
