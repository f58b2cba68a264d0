"""The error of a refused template, with its place. The error of a single row is a value: `RowError`."""

from __future__ import annotations

from jobs.errors import InputError


class TemplateRefusedError(InputError):
    """The template cannot be used; `line` and `column` count from 1, None if there is no single place."""

    code = "invalid_template"

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f"line {line}: " if column is None else f"line {line}, column {column}: "
        super().__init__(place + message, param="template")
        self.line = line
        self.column = column
