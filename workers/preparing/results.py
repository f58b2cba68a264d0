"""Builds the results of lines from bodies and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.chunks.recording import LineResult
from jobs.errors import InputError
from jobs.lines.output_lines import output_line
from jobs.lines.responses import error_body

REFUSED = 422
"""Status of a document that was not read or an answer that was not grounded, because of its content."""


def answered(batch_id: str, line_no: int, custom_id: str, body: Mapping[str, Any]) -> LineResult:
    """Return the result of a line that has an answer."""
    content = output_line(batch_id, line_no, custom_id, status_code=200, body=body)
    return LineResult(line_no=line_no, status_code=200, line=content)


def refused(batch_id: str, line_no: int, custom_id: str | None, error: InputError) -> LineResult:
    """Return the result of a line that has no answer, with the error's page if it has one."""
    body = error_body(error.message, code=error.code, param=error.param)
    body["error"]["page"] = getattr(error, "page", None)
    content = output_line(batch_id, line_no, custom_id, status_code=REFUSED, body=body)
    return LineResult(line_no=line_no, status_code=REFUSED, line=content)
