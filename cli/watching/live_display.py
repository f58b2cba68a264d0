"""The progress of a batch in a terminal: a bar and figures below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.watching.lines_bar import LinesBar
from cli.watching.progress import BatchProgress, Rate, Waiting, figures, shown_count
from jobs.outcomes import standing


@contextmanager
def live_display(stream: TextIO, *, monotonic: Callable[[], float], waiting: Waiting) -> Iterator[LiveDisplay]:
    """Open a display on a terminal."""
    display = LiveDisplay(monotonic=monotonic, waiting=waiting)
    with Live(get_renderable=display.rendered, console=Console(file=stream), refresh_per_second=4):
        yield display


class LiveDisplay:
    """A bar, below it figures, and below those what the batch waits for."""

    def __init__(self, *, monotonic: Callable[[], float], waiting: Waiting) -> None:
        self._monotonic = monotonic
        self._rate = Rate()
        self._waiting = waiting
        self._progress: BatchProgress | None = None

    def show(self, progress: BatchProgress) -> None:
        self._rate.add(self._monotonic(), progress)
        self._progress = progress

    def rendered(self) -> RenderableType:
        """Return the current content of the terminal."""

        progress = self._progress
        if progress is None:
            return Text("starting")
        completed = progress.done - progress.failed
        bar: RenderableType = ProgressBar(total=None, pulse=True)
        if progress.total:
            bar = LinesBar(completed=completed, failed=progress.failed, total=progress.total)
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right")
        stands = standing(progress.status, completed=completed, failed=progress.failed)
        row.add_row(stands.replace("_", " "), bar, shown_count(progress))
        parts = [part.replace(" ", "\N{NO-BREAK SPACE}") for part in figures(self._rate, progress)]
        below = [Text("  ".join(parts), style="cyan")] if parts else []
        if (sentence := self._waiting.sentence(progress)) is not None:
            below.append(Text(sentence, style="yellow"))
        return Group(row, *below)
