"""Reads files of requests line by line, in constant memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from cli.disk.input_file import opened
from jobs.errors import InputError

_MAX_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class InputScan:
    """The result of one pass over an input file: digest, line count, models and endpoint."""

    sha256: str
    num_lines: int
    models: tuple[str, ...]  # names in the order they appear, each once, at most 20
    endpoint: str


def scan_input(path: Path) -> InputScan:
    """Read the whole file once. Bad lines are left to validation.

    Raises InputError if it cannot be read or has no lines.
    """
    digest = hashlib.sha256()
    num_lines = 0
    models: dict[str, None] = {}
    endpoint = ""
    for raw in _lines(path):
        digest.update(raw)
        if not raw.strip():
            continue
        num_lines += 1
        line = _parsed(raw)
        body = line.get("body")
        name = body.get("model") if isinstance(body, dict) else None
        if isinstance(name, str) and len(models) < _MAX_NAMES:
            models[name] = None
        endpoint = endpoint or str(line.get("url") or "")
    if num_lines == 0:
        raise InputError(f"{path} contains no requests. Give one JSON object per line.")
    return InputScan(
        sha256=digest.hexdigest(),
        num_lines=num_lines,
        models=tuple(models),
        endpoint=endpoint or "/v1/chat/completions",
    )


def named_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each request of a valid file with its custom_id."""
    for raw in _lines(path):
        if raw.strip():
            yield str(_parsed(raw).get("custom_id")), raw


def _lines(path: Path) -> Iterator[bytes]:
    with opened(path) as file:
        yield from file


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        line = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        return {}
    return line if isinstance(line, dict) else {}
