"""Requests that come in a create call instead of a file, as lines of one. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jobs.errors import InputError

MAX_LINES = 5000
_METHOD = "POST"


def lines_of(requests: Sequence[Mapping[str, Any]], *, endpoint: str) -> list[bytes]:
    """Return each request as a line; what it leaves out of custom_id, method and url is `request-1` …, POST, endpoint.

    What is wrong with a request validation says, as of a file. Raises InputError for one that is no JSON.
    """
    return [_line(request, number, endpoint=endpoint) for number, request in enumerate(requests, start=1)]


def digest(lines: Iterable[bytes]) -> str:
    """Return what stands for the lines when a create is sent again."""
    return "lines " + hashlib.sha256(b"\n".join(lines)).hexdigest()


def _line(request: Mapping[str, Any], number: int, *, endpoint: str) -> bytes:
    given = {"custom_id": f"request-{number}", "method": _METHOD, "url": endpoint} | dict(request)
    try:
        return json.dumps(given, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"Request {number} cannot be written as a line: {error}. Give valid JSON without NaN, Infinity or unpaired "
            "surrogates.",
            param=f"requests.{number - 1}",
            code="invalid_value",
        ) from None
