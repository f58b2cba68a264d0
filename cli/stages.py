"""What a server does in stages, each a batch: listed, and shown on standard error until it has ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.calls import server
from cli.table import print_table
from cli.watching.patience import ask_patiently

if TYPE_CHECKING:
    from cli.calls import Calls

_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table of the newest of a kind."""

    path: str
    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    """Those of them that are numbers."""
    row: Callable[[dict[str, Any]], tuple[object, ...]]
    """What one has in the columns; in `reason`, the last of them, a sentence."""

    def print(self, *, collection: str | None, limit: int, as_json: bool) -> None:
        """Print the newest of all collections, or of one."""
        with server() as calls:
            found = calls.pages(self.path, limit=limit, collection_id=collection)
        if as_json:
            print(json.dumps(found, indent=2))
            return
        print_table(self.columns, map(self.row, found), numbers=self.numbers, below="reason")


def stage_reached(found: dict[str, Any]) -> str:
    return found["stages"][-1]["name"] if found["stages"] else ""


def until_ended(calls: Calls, path: str) -> dict[str, Any]:
    """Say what changes of an extraction or an index, and return it once it has ended."""
    said = ""
    while (found := ask_patiently(calls.client, lambda: calls.get(path)))["status"] in ("in_progress", "cancelling"):
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
