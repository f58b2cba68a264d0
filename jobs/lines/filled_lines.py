"""Filled inputs: the lines that ask for it, and those of a filled input that did not get what they asked for.

Pure. A feature fills inputs; the queue counts such lines beforehand, and fails those that are not filled.
"""

from __future__ import annotations

from typing import Any

import orjson

from jobs.lines.bodies import ChatRequest
from jobs.lines.endpoints import Request
from jobs.lines.reading import MARK, InputLine, UnfilledLine

UNAVAILABLE = "context_unavailable"
"""Code of a line for which nothing was looked up, or whose finds are lost: a retry of the line may get them."""


def is_to_be_filled(request: Request) -> bool:
    """Return whether a line does not run before it is filled."""
    return isinstance(request, ChatRequest) and request.context is not None


def left_unfilled(line: InputLine) -> UnfilledLine:
    """Return the problem of a line that asks to be filled although its input is."""
    message = "nothing was looked up for its prompt"
    return UnfilledLine(UNAVAILABLE, message, line_no=line.line_no, param="body.context", custom_id=line.custom_id)


def unfilled(custom_id: str, *, code: str, message: str) -> bytes:
    """Return what stands in a filled input for a line that could not be filled, without a line end."""
    return orjson.dumps({"custom_id": custom_id, MARK: {"error": {"code": code, "message": message}}})


def unmarked(content: bytes) -> bytes:
    """Return a line without a mark beside its body: in a filled input only the service's own have a meaning."""
    if b'"context"' not in content and rb"\u" not in content:
        return content
    try:
        line: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content
    if type(line) is not dict or MARK not in line:
        return content
    try:
        return orjson.dumps({key: value for key, value in line.items() if key != MARK})
    except orjson.JSONEncodeError:  # nested deeper than can be written; of two members of one name the last one counts
        return content.rstrip().removesuffix(b"}") + b',"context":null}'
