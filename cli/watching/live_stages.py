"""The progress of an extraction or an index in a terminal: a bar for each stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.watching.lines_bar import LinesBar
from cli.watching.stage_counts import counts_of, expected_end


@contextmanager
def live_stages(stream: TextIO) -> Iterator[LiveStages]:
    """Open a display on a terminal."""
    display = LiveStages()
    with Live(get_renderable=display.rendered, console=Console(file=stream), refresh_per_second=4, transient=True):
        yield display


class LiveStages:
    """A row for each stage, and below them the expected end, and the reason for a wait."""

    def __init__(self) -> None:
        self._latest: dict[str, Any] | None = None

    def show(self, obj: dict[str, Any]) -> None:
        self._latest = obj

    def rendered(self) -> RenderableType:
        """Return the current content of the terminal."""
        if self._latest is None or not self._latest["stages"]:
            return Text("starting")
        rows = Table.grid(padding=(0, 1), expand=True)
        rows.add_column(no_wrap=True)
        rows.add_column(ratio=1)
        rows.add_column(no_wrap=True, justify="right")
        for name, done, failed, total in counts_of(self._latest):
            bar: RenderableType = ProgressBar(total=None, pulse=True)
            if total:
                bar = LinesBar(completed=done - failed, failed=failed, total=total)
            rows.add_row(name.replace("_", " "), bar, f"{done:,}/{total:,}" if total else "")
        end, reason = expected_end(self._latest, now=time.time()), self._latest["reason"]
        return Group(rows, *([Text(end)] if end else []), *([Text(reason, style="yellow")] if reason else []))
