"""The files that an extraction writes, and the counts taken as its records pass."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import orjson

from features.documents.extraction.fields.schema import FieldSchema
from features.documents.record_ranges import ByteRange
from features.documents.record_table import open_parquet, row_of, table_columns
from features.documents.tables import Extraction
from jobs.files import NewFile, Purpose, new_object_key
from jobs.settings import MIB
from jobs.storage import Storage

_COPIED_AT_ONCE = MIB


@dataclass(slots=True, kw_only=True)
class Written:
    """The files, not yet named by any row, and the counts of documents."""

    records: NewFile
    table: NewFile | None = None
    num_done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Number of failed documents, by error code."""
    num_to_review: int = 0
    """Number of values, including nulls, that a person should review."""
    ranges: dict[str, ByteRange] = field(default_factory=dict)
    """Byte ranges of the records, by document id."""

    def count(self, record: dict[str, Any]) -> None:
        if record["error"] is None:
            self.num_done += 1
        else:
            self.codes[record["error"]["code"]] += 1
        self.num_to_review += sum(each["review"] for each in record["evidence"])


def write(
    storage: Storage, extraction: Extraction, records: Iterable[dict[str, Any]], *, schema: FieldSchema
) -> Written:
    """Write every record, and its fields to the table; if `records` raises, no file appears. Raises ServiceError."""
    key = new_object_key(extraction.tenant_id)
    counts = Written(records=_file(extraction, key, "jsonl", 0))
    columns = table_columns(schema) if extraction.parquet else {}
    with ExitStack() as closing:
        spool = closing.enter_context(tempfile.TemporaryFile())
        with ExitStack() as writing:
            rows = writing.enter_context(open_parquet(spool, columns)) if extraction.parquet else None
            lines = writing.enter_context(storage.writer(key))
            for record in records:
                counts.count(record)
                start = lines.size_bytes
                lines.write(orjson.dumps(record) + b"\n")
                counts.ranges[record["document_id"]] = (start, lines.size_bytes)
                if rows is not None:
                    rows.write(row_of(record, columns))
        counts.records = _file(extraction, key, "jsonl", lines.size_bytes)
        if extraction.parquet:
            counts.table = _stored(storage, extraction, spool)
    return counts


def write_provisional(storage: Storage, extraction: Extraction, records: Iterable[dict[str, Any]]) -> NewFile:
    """Write the current records, some of which will still change; if `records` raises, no file appears."""
    key = new_object_key(extraction.tenant_id)
    with storage.writer(key) as lines:
        for record in records:
            lines.write(orjson.dumps(record) + b"\n")
    return _file(extraction, key, "provisional.jsonl", lines.size_bytes)


def _stored(storage: Storage, extraction: Extraction, spool: BinaryIO) -> NewFile:
    """Copy a finished table: its writer needs to seek, so it was written to a local file first."""
    spool.seek(0)
    key = new_object_key(extraction.tenant_id)
    size = storage.put(key, iter(lambda: spool.read(_COPIED_AT_ONCE), b""))
    return _file(extraction, key, "parquet", size)


def _file(extraction: Extraction, key: str, suffix: str, size_bytes: int) -> NewFile:
    return NewFile(
        object_key=key,
        filename=f"{extraction.id}.{suffix}",
        purpose=Purpose.BATCH_OUTPUT,
        size_bytes=size_bytes,
        expires_after_seconds=extraction.output_expires_after_seconds,
    )
