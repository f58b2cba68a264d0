"""Lines of output and error files, with ids that stay the same when a line is run again.

Pure: values in, bytes out; no SQL, no storage. `jobs.lines.responses` builds the bodies of responses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

_NO_RESPONSE = b'"response":null,"error":{"code":"'


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


def failure_code(line: bytes) -> str | None:
    """Return the code of a line of the error file; None where its error has none.

    Most lines have no response: their code is found without parsing them, a tenth of the time.
    """
    found = line.find(_NO_RESPONSE)  # never in a custom_id, where quotes are escaped
    if found >= 0:
        begin = found + len(_NO_RESPONSE)
        code = line[begin : line.find(b'"', begin)]
        if b"\\" not in code:
            return code.decode()
    error = _error_of(orjson.loads(line))
    code_of_error = error.get("code") if type(error) is dict else None
    return None if code_of_error is None else str(code_of_error)


def _error_of(answer: Mapping[str, Any]) -> Any:
    if answer["error"] is not None:
        return answer["error"]
    body = (answer["response"] or {}).get("body")
    return body.get("error") if type(body) is dict else None


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
