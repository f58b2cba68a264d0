"""Uploaded tables, and the requests made from their rows."""

from __future__ import annotations

from typing import Any, Literal, Self

from api.schemas.files import FileObject
from api.schemas.wire import WireModel
from features.pipelines.sources.uploaded_tables import WrittenRequests


class TableObject(WireModel):
    object: Literal["table"] = "table"
    file_id: str
    columns: list[str]
    """For a JSONL file, whose rows may differ, those of the first rows."""
    rows: list[dict[str, Any]]
    """The first three rows, without long ones."""


class UnfitRow(WireModel):
    row: int
    """From 1."""
    message: str


class TableRequestsObject(WireModel):
    object: Literal["table.requests"] = "table.requests"
    file: FileObject
    """The input: a line for each row that fits the prompt, whose custom_id is `row-` and the row's number."""
    rows: int
    failed: int
    """Rows that do not fit the prompt; they are left out."""
    errors: list[UnfitRow]
    """Errors of the first of these rows."""
    lines: list[dict[str, Any]]
    """The first three lines of the file, without long ones."""

    @classmethod
    def of(cls, file: FileObject, written: WrittenRequests) -> Self:
        errors = [UnfitRow(row=each.index, message=each.error) for each in written.errors]
        return cls(file=file, rows=written.num_rows, failed=written.num_failed, errors=errors, lines=written.lines)
