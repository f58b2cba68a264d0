"""What is shown of an extraction or an index: the numbers of lines of its stages, and its expected end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.watching.progress import clock


def expected_end(obj: dict[str, Any], *, now: float) -> str:
    """Return when it is expected to end, as in `ETA 2:10 (0:45 to 4:30)`; empty while unknown. `now`: Unix seconds."""
    if obj.get("eta") is None:  # a server of an earlier release has no such field
        return ""
    left, earliest, latest = (clock(max(0.0, obj[name] - now)) for name in ("eta", "eta_earliest", "eta_latest"))
    return f"ETA {left} ({earliest} to {latest})"


def counts_of(obj: dict[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """Yield the name of each stage with its numbers of ended, failed and all lines."""
    for stage in obj["stages"]:
        counts = stage["request_counts"] or {"completed": 0, "failed": 0, "total": 0}
        yield stage["name"], counts["completed"] + counts["failed"], counts["failed"], counts["total"]
