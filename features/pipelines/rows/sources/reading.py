"""Opens a source: checks that all files have the same columns before a row is read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from features.pipelines.rows.sources.files import Format, SourceFile, files_of
from features.pipelines.rows.sources.formats import (
    CsvHeader,
    csv_header,
    csv_rows,
    jsonl_rows,
    parquet_rows,
    parquet_schema,
)
from features.pipelines.rows.sources.source import Row, Source
from jobs.errors import InputError


def open_source(spec: str) -> Source:
    """Return the source of a file, a glob, a folder or a store's prefix. Raise InputError if it is not one table."""
    return source_of(files_of(spec), description=spec)


def source_of(files: Sequence[SourceFile], *, description: str) -> Source:
    """Return the source of one or more files of one format, in the given order."""
    columns: list[str] | None = None
    schema: Any = None
    headers: list[CsvHeader] = []
    if files[0].format is Format.CSV:
        headers = [csv_header(file) for file in files]
        columns = _same([header.columns for header in headers], files)
    elif files[0].format is Format.PARQUET:
        schema = _same([parquet_schema(file) for file in files], files)
        columns = list(schema.names)
    return Source(
        description=description,
        columns=columns,
        schema=schema,
        read=lambda: _rows(files, columns),
        identity=lambda: _identity(files),
        notes=_notes(files, headers),
    )


def _notes(files: Sequence[SourceFile], headers: Sequence[CsvHeader]) -> list[str]:
    notes = ((file.name, header.dialect.note) for file, header in zip(files, headers, strict=False))
    return [f"{name} is read with {note}" for name, note in notes if note]


def _same(columns: Sequence[Any], files: Sequence[SourceFile]) -> Any:
    for other, file in zip(columns, files, strict=True):
        if other != columns[0]:
            raise InputError(
                f"{file.name} has other columns than {files[0].name}: {_shown(other)} instead of {_shown(columns[0])}. "
                "Give files of one table."
            )
    return columns[0]


def _shown(columns: Any) -> str:
    if isinstance(columns, list):
        return ", ".join(columns)
    return ", ".join(f"{field.name} {field.type}" for field in columns)


def _rows(files: Sequence[SourceFile], columns: Sequence[str] | None) -> Iterator[Row]:
    for file in files:
        if file.format is Format.JSONL:
            yield from jsonl_rows(file)
        elif file.format is Format.CSV:
            yield from csv_rows(file, columns or ())
        else:
            yield from parquet_rows(file)


def _identity(files: Sequence[SourceFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n{file.identity()}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
