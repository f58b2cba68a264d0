"""The files that an extraction leaves, and what is counted as its records pass."""

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
    """The files, which no row names yet, and what became of documents."""

    records: NewFile
    table: NewFile | None = None
    num_done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """How many documents failed, by code."""
    num_to_review: int = 0
    """Values, null among them, that a person should look at."""
    ranges: dict[str, ByteRange] = field(default_factory=dict)
    """Where the records lie, by the ids of their documents."""

    def count(self, record: dict[str, Any]) -> None:
        if record["error"] is None:
            self.num_done += 1
        else:
            self.codes[record["error"]["code"]] += 1
        self.num_to_review += sum(each["review"] for each in record["evidence"])


def write(
    storage: Storage, extraction: Extraction, records: Iterable[dict[str, Any]], *, schema: FieldSchema
) -> Written:
    """Write every record, and its fields to the table; where `records` raise nothing appears. Raises ServiceError."""
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
    """Write the records of now, which some documents will have others than; where `records` raise nothing appears."""
    key = new_object_key(extraction.tenant_id)
    with storage.writer(key) as lines:
        for record in records:
            lines.write(orjson.dumps(record) + b"\n")
    return _file(extraction, key, "provisional.jsonl", lines.size_bytes)


def _stored(storage: Storage, extraction: Extraction, spool: BinaryIO) -> NewFile:
    """Copy a table that is written: while it is, its writer looks back in it."""
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
