"""Causes of a program's end that its last log line does not show. A full disk cannot even be logged."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from jobs.telemetry.logs import last_words

_FULL_BYTES = 1 << 20
_LAST_LINES = 20
"""Earlier lines are not about the end of a program."""
_PATTERNS = (
    ("the disk is full", r"No space left on device|os error 28\b|ENOSPC"),
    ("the disk quota is used up", r"Disk quota exceeded|os error 122\b"),
    (
        "the network was lost, or a host in it cannot be reached",
        r"Name or service not known|Temporary failure in name resolution|Failed to resolve|Network is unreachable"
        r"|No route to host|couldn't connect to 'https|LocalEntryNotFoundError",
    ),
)
_COMPILED = tuple((cause, re.compile(pattern)) for cause, pattern in _PATTERNS)


def cause_of(written: str, folder: Path) -> str | None:
    """Return the cause as a sentence, from the output of a program since its start and the disk of `folder`."""
    free = _free_bytes(folder)
    if free is not None and free < _FULL_BYTES:
        return f"the disk of {folder} is full; free space there"
    last = "\n".join(written.splitlines()[-_LAST_LINES:])
    cause = next((cause for cause, pattern in _COMPILED if pattern.search(last)), None)
    return None if cause is None else f"{cause} ({_line_with(cause, last)})"


def _line_with(cause: str, written: str) -> str:
    pattern = dict(_COMPILED)[cause]
    line = next(line for line in reversed(written.splitlines()) if pattern.search(line))
    return last_words(line.strip()).removeprefix("tokenmill: ")


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
