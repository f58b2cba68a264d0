"""Byte ranges of an extraction's records by document, so that one record is read without those before it.

Stored together with the file, or when a record is first looked up in it.
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

from features.documents.lifecycle import EXTRACTIONS
from features.documents.records import MAX_RECORD_BYTES, RecordsFile
from features.documents.tables import RecordRanges
from jobs.errors import NotFoundError
from jobs.lines.reading import iter_lines
from jobs.storage import Storage

_BUCKETS = 256
"""Maximum number of rows per extraction; with 100,000 documents a row holds 400 and is read and written at once."""

ByteRange = tuple[int, int]
"""Of a record with its line end: its first byte, and the first byte after it."""


def note(session: Session, extraction_id: str, ranges: Mapping[str, ByteRange]) -> None:
    """Store the ranges of all records, by document id; does nothing if they are already stored."""
    buckets: defaultdict[int, dict[str, ByteRange]] = defaultdict(dict)
    for document_id, byte_range in ranges.items():
        buckets[_bucket(document_id)][document_id] = byte_range
    rows = [{"extraction_id": extraction_id, "bucket": bucket, "ranges": inside} for bucket, inside in buckets.items()]
    if rows:
        session.execute(insert(RecordRanges).on_conflict_do_nothing(), rows)


def note_late(session: Session, tenant_id: str, extraction_id: str, ranges: Mapping[str, ByteRange]) -> None:
    """Store the ranges for a completed extraction of this tenant. Raises NotFoundError if it was deleted meanwhile."""
    EXTRACTIONS.lock_own(session, tenant_id, extraction_id)
    note(session, extraction_id, ranges)


def find(session: Session, extraction_id: str, document_id: str) -> ByteRange | None:
    """Return the range of a document's record. Raises NotFoundError.

    Returns None if the document's bucket has no row: no document falls into it, or the file was not scanned yet.
    """
    row = RecordRanges
    of_bucket = (row.extraction_id == extraction_id) & (row.bucket == _bucket(document_id))
    ranges = session.scalar(select(row.ranges).where(of_bucket))
    return None if ranges is None else range_of(ranges, document_id)


def range_of(ranges: Mapping[str, Any], document_id: str) -> ByteRange:
    """Return the range of a document. Raises NotFoundError."""
    if document_id not in ranges:
        raise NotFoundError(f"The extraction has no document {document_id[:100]!r}.", param="document_id")
    start, end = ranges[document_id]
    return start, end


def read_all(storage: Storage, file: RecordsFile) -> dict[str, ByteRange]:
    """Return the ranges of all records by reading the whole file."""
    ranges = {}
    for line in iter_lines(storage.iter_chunks(file.object_key), max_line_bytes=MAX_RECORD_BYTES):
        assert line.content is not None, "records are shorter"
        ranges[orjson.loads(line.content)["document_id"]] = (line.byte_start, line.byte_end)
    return ranges


def read_record(storage: Storage, file: RecordsFile, where: ByteRange) -> dict[str, Any]:
    """Return the record in this range."""
    return dict(orjson.loads(storage.read_range(file.object_key, *where)))


def _bucket(document_id: str) -> int:
    return zlib.crc32(document_id.encode()) % _BUCKETS
