"""The results of a file in the order of their lines."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from cli.submitting import ordered_results


class OrderedResults(ordered_results.OrderedResults):
    """The results of a file, except errors with the codes `without`; open until `closing` ends."""

    def __init__(self, path: Path, closing: ExitStack, *, without: Collection[str] = ()) -> None:
        super().__init__(closing.enter_context(path.open("rb")), name=str(path), without=without)
