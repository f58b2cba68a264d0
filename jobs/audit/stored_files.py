"""Compare the object store with the inputs of live batches and the files of ended ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from jobs.audit.findings import IN_SCOPE, IS_ASKED, Finding
from jobs.counted import counted
from jobs.errors import NotFoundError
from jobs.storage import Storage


def inputs(session: Session, scope: dict[str, Any], storage: Storage) -> Iterator[Finding]:
    """Yield live batches whose input is gone, or differs in size from its row."""
    for row in session.execute(_INPUTS, scope):
        try:
            size_bytes = storage.size(row.object_key)
        except NotFoundError:
            yield Finding(subject=row.id, message=f"the input file {row.file_id} has no object in the store")
            continue
        if size_bytes != row.size_bytes:
            message = f"the input file {row.file_id} has {size_bytes} bytes and its row says {row.size_bytes}"
            yield Finding(subject=row.id, message=message)


def files(session: Session, scope: dict[str, Any], storage: Storage) -> Iterator[Finding]:
    """Yield ended batches whose files are gone, or differ in lines or bytes from the counters."""
    for row in session.execute(_FILES, scope):
        expected = row.num_failed if row.is_error_file else row.num_completed
        kind = "error" if row.is_error_file else "output"
        for message in _file_problems(row, storage, kind=kind, expected=expected):
            yield Finding(subject=row.id, message=message)


def _file_problems(row: Row[Any], storage: Storage, *, kind: str, expected: int) -> Iterator[str]:
    if row.file_id is None:
        if expected:
            yield f"the batch is {row.state} and has no {kind} file for {counted(expected, 'line')}"
        return
    try:
        num_lines, size_bytes = _measure(storage, row.object_key)
    except NotFoundError:
        yield f"the {kind} file {row.file_id} has no object in the store"
        return
    if num_lines != expected:
        yield f"the {kind} file has {counted(num_lines, 'line')} and the batch counts {expected}"
    if size_bytes != row.size_bytes:
        yield f"the {kind} file has {size_bytes} bytes and its row says {row.size_bytes}"


def _measure(storage: Storage, key: str) -> tuple[int, int]:
    num_lines = size_bytes = 0
    for chunk in storage.iter_chunks(key):
        num_lines += chunk.count(b"\n")
        size_bytes += len(chunk)
    return num_lines, size_bytes


_INPUTS = text(f"""
    SELECT batch.id, file.id AS file_id, part.object_key, part.size_bytes
    FROM batch JOIN file ON file.id = batch.input_file_id
        CROSS JOIN LATERAL (
            SELECT file.object_key, file.size_bytes
            UNION ALL SELECT object_key, size_bytes FROM input_segment WHERE batch_id = batch.id
        ) AS part
    WHERE {IS_ASKED} AND batch.state = ANY(CAST(:live AS text[])) ORDER BY batch.id
""")

_FILES = text(f"""
    SELECT batch.id, batch.state, batch.num_completed, batch.num_failed, kind.is_error_file, kind.file_id,
        file.object_key, file.size_bytes
    FROM batch
        CROSS JOIN LATERAL (VALUES (FALSE, batch.output_file_id), (TRUE, batch.error_file_id))
            AS kind (is_error_file, file_id)
        LEFT JOIN file ON file.id = kind.file_id
    WHERE {IN_SCOPE} AND batch.state IN ('completed', 'expired', 'cancelled')
        AND (kind.file_id IS NULL OR file.deleted_at IS NULL AND (file.expires_at IS NULL OR file.expires_at > now()))
    ORDER BY batch.id, kind.is_error_file
""")
