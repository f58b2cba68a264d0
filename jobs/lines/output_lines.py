"""Lines of output and error files, with ids that stay the same when a line is run again.

Pure: values in, bytes out; no SQL, no storage. `jobs.lines.responses` builds the bodies of responses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson


def response_id(prefix: str, batch_id: str, line_no: int) -> str:
    """Return the id of a response body, `<prefix>-…` (`chatcmpl`, `cmpl`), stable across runs of a line."""
    return f"{prefix}-{_digest(prefix, batch_id, line_no)}"


def output_line(
    batch_id: str, line_no: int, custom_id: str | None, *, status_code: int, body: Mapping[str, Any]
) -> bytes:
    """Build a line with a response: of the output file below status 400, otherwise of the error file. No newline."""
    response = {"status_code": status_code, "request_id": _derived_id("req", batch_id, line_no), "body": body}
    return _line(batch_id, line_no, custom_id=custom_id, response=response, error=None)


def answer_of(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the custom_id and the response body of a line of the output file."""
    answer = orjson.loads(line)
    return answer["custom_id"], answer["response"]["body"]


def error_line(batch_id: str, line_no: int, custom_id: str | None, *, code: str, message: str) -> bytes:
    """Build a line of the error file for a request that got no response. No newline."""
    return _line(batch_id, line_no, custom_id=custom_id, response=None, error={"code": code, "message": message})


def _line(
    batch_id: str,
    line_no: int,
    *,
    custom_id: str | None,
    response: Mapping[str, Any] | None,
    error: Mapping[str, str] | None,
) -> bytes:
    return orjson.dumps(
        {"id": line_id(batch_id, line_no), "custom_id": custom_id, "response": response, "error": error}
    )


def line_id(batch_id: str, line_no: int) -> str:
    """Return the `id` of the output or error line for a line of the input."""
    return _derived_id("batch_req", batch_id, line_no)


def _derived_id(kind: str, batch_id: str, line_no: int) -> str:
    """Return an id derived from batch and line."""
    return f"{kind}_{_digest(kind, batch_id, line_no)}"


def _digest(kind: str, batch_id: str, line_no: int) -> str:
    return hashlib.blake2b(f"{kind}:{batch_id}:{line_no}".encode(), digest_size=16).hexdigest()
