"""What a server does in stages, each a batch: shown on standard error until it has ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cli.pipelines.calls import Calls

_POLL_SECONDS = 1.0


def until_ended(calls: Calls, path: str) -> dict[str, Any]:
    """Say what changes of an extraction or an index, and return it once it has ended."""
    said = ""
    while (found := calls.get(path))["status"] in ("in_progress", "cancelling"):
        now = progress(found)
        if now != said:
            print(now, file=sys.stderr, flush=True)
            said = now
        time.sleep(_POLL_SECONDS)
    return found


def progress(found: dict[str, Any]) -> str:
    """Return how far each stage is, and what is waited for."""
    stages = []
    for stage in found["stages"]:
        counts = stage["request_counts"] or {"completed": 0, "failed": 0, "total": 0}
        stages.append(f"{stage['name']} {counts['completed'] + counts['failed']:,}/{counts['total']:,}")
    return " · ".join(stages) + (f" · {found['reason']}" if found["reason"] else "")
