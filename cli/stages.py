"""Lists of extractions and indexes, which a server builds in stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cli.calls import server
from cli.table import print_table


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
