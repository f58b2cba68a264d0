"""Extractions and indexes, which a server builds in stages: as a list, and as progress on standard error."""

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
    """A table of the newest objects of a kind."""

    path: str
    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    """The columns with numbers."""
    row: Callable[[dict[str, Any]], tuple[object, ...]]
    """The values of the columns; the last, `reason`, is a sentence."""

    def print(self, *, collection: str | None, limit: int, as_json: bool) -> None:
        """Print the newest objects of all collections, or of one."""
        with server() as calls:
            objects = calls.pages(self.path, limit=limit, collection_id=collection)
        if as_json:
            print(json.dumps(objects, indent=2))
            return
        print_table(self.columns, map(self.row, objects), numbers=self.numbers, below="reason")


def stage_reached(obj: dict[str, Any]) -> str:
    return obj["stages"][-1]["name"] if obj["stages"] else ""


def until_ended(calls: Calls, path: str) -> dict[str, Any]:
    """Print the progress of an extraction or an index, and return it once it has ended."""
    printed = ""
    while (latest := ask_patiently(calls.client, lambda: calls.get(path)))["status"] in ("in_progress", "cancelling"):
        now = progress(latest)
        if now != printed:
            print(now, file=sys.stderr, flush=True)
            printed = now
        time.sleep(_POLL_SECONDS)
    return latest


def progress(obj: dict[str, Any]) -> str:
    """Return the progress of each stage, and the reason for a wait."""
    stages = []
    for stage in obj["stages"]:
        counts = stage["request_counts"] or {"completed": 0, "failed": 0, "total": 0}
        stages.append(f"{stage['name']} {counts['completed'] + counts['failed']:,}/{counts['total']:,}")
    return " · ".join(stages) + (f" · {obj['reason']}" if obj["reason"] else "")
