"""Convert requests given inline in a create call to lines of an input file. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jobs.errors import InputError

MAX_LINES = 5000
_METHOD = "POST"


def lines_of(requests: Sequence[Mapping[str, Any]], *, endpoint: str) -> list[bytes]:
    """Return each request as a line; custom_id, method and url default to `request-1` …, POST and the endpoint.

    Invalid requests are reported by validation, as for a file. Raises InputError for one that is no JSON.
    """
    return [_line(request, number, endpoint=endpoint) for number, request in enumerate(requests, start=1)]


def digest(lines: Iterable[bytes]) -> str:
    """Return a digest of the lines, which identifies a repeated create call."""
    return "lines " + hashlib.sha256(b"\n".join(lines)).hexdigest()


def _line(request: Mapping[str, Any], number: int, *, endpoint: str) -> bytes:
    values = {"custom_id": f"request-{number}", "method": _METHOD, "url": endpoint} | dict(request)
    try:
        return json.dumps(values, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"Request {number} cannot be written as a line: {error}. Give valid JSON without NaN, Infinity or unpaired "
            "surrogates.",
            param=f"requests.{number - 1}",
            code="invalid_value",
        ) from None
