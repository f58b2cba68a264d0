"""The numbers of lines of what a service builds in stages: an extraction or an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def counts_of(obj: dict[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """Yield the name of each stage with its numbers of ended, failed and all lines."""
    for stage in obj["stages"]:
        counts = stage["request_counts"] or {"completed": 0, "failed": 0, "total": 0}
        yield stage["name"], counts["completed"] + counts["failed"], counts["failed"], counts["total"]
