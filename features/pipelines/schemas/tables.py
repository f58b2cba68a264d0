"""Tables that were uploaded, and the requests that their rows became."""

from __future__ import annotations

from typing import Any, Literal, Self

from api.schemas.files import FileObject
from api.schemas.wire import WireModel
from features.pipelines.sources.uploaded_tables import WrittenRequests


class TableObject(WireModel):
    object: Literal["table"] = "table"
    file_id: str
    columns: list[str]
    """Of a JSONL file, whose rows have names of their own, those of the first rows."""
    rows: list[dict[str, Any]]
    """The first three, fewer where they are long."""


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
    """Of the first of these."""
    lines: list[dict[str, Any]]
    """The first three of the file, fewer where they are long."""

    @classmethod
    def of(cls, file: FileObject, written: WrittenRequests) -> Self:
        errors = [UnfitRow(row=each.index, message=each.error) for each in written.errors]
        return cls(file=file, rows=written.num_rows, failed=written.num_failed, errors=errors, lines=written.lines)
