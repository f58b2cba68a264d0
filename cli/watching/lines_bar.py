"""The bar of a batch in a terminal: completed, failed and remaining lines."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

_COMPLETED, _FAILED, _TO_DO = Style(color="green"), Style(color="red"), Style(dim=True)
_CHARACTER = "━"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesBar:
    """Fills the available width; failed lines have at least one character."""

    completed: int
    failed: int
    total: int
    """Not 0."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        character = "-" if options.ascii_only else _CHARACTER
        widths = self.widths(options.max_width)
        for width, style in zip(widths, (_COMPLETED, _FAILED, _TO_DO), strict=True):
            yield Segment(character * width, style)

    def widths(self, width: int) -> tuple[int, int, int]:
        """Return the number of characters of each part."""
        done = width * (self.completed + self.failed) // self.total
        failed = max(width * self.failed // self.total, 1) if self.failed else 0
        completed = max(done - failed, 0)
        return completed, failed, max(width - completed - failed, 0)
