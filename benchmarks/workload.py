"""Read a workload: one request per line, plain or gzipped.

A request is `{"prompt_token_ids": […], "max_tokens": n, "ignore_eos": true, "arrival_seconds": 0.0}`; an optional
`json_schema`, as text, constrains its output.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path


class WorkloadError(ValueError):
    """A workload file is missing, or one of its lines is not a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request."""

    prompt_token_ids: list[int]
    max_tokens: int
    ignore_eos: bool
    arrival_seconds: float
    """From the start."""
    json_schema: str | None = None
    """Constraint of the output."""


def read_workload(path: Path) -> list[WorkloadRequest]:
    """Return the file's requests in order of arrival. Raises WorkloadError with the line's number."""
    if not path.is_file():
        raise WorkloadError(f"There is no workload file at {path}.")
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        requests = [_parse(line, number, path) for number, line in enumerate(lines, start=1) if line.strip()]
    if not requests:
        raise WorkloadError(f"{path} has no requests.")
    return sorted(requests, key=lambda request: request.arrival_seconds)


def _parse(line: str, number: int, path: Path) -> WorkloadRequest:
    try:
        body = json.loads(line)
        return WorkloadRequest(
            prompt_token_ids=[int(token) for token in body["prompt_token_ids"]],
            max_tokens=int(body["max_tokens"]),
            ignore_eos=bool(body.get("ignore_eos", False)),
            arrival_seconds=float(body.get("arrival_seconds", 0.0)),
            json_schema=body.get("json_schema"),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise WorkloadError(f"{path} line {number} is not a request: {error!r}.") from error
