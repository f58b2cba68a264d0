"""The interface of what reads the lines of a batch, wherever its results are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from jobs.lines.line_index import Kind
from jobs.settings import MIB

MAX_SHOWN_BYTES = 64 * 1024
"""Of a line on a page; the rest of a longer one is not read."""
MAX_LINE_BYTES = 4 * MIB
"""Of a line, or a request, that is read alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFilter:
    """The lines that are wanted: those that meet all of this."""

    is_error: bool | None = None
    """Whether they failed; None: either."""
    code: str | None = None
    status_code: int | None = None

    def takes(self, kind: Kind) -> bool:
        """Return whether lines of this kind are wanted."""
        return (
            self.is_error in (None, kind.is_error)
            and self.code in (None, kind.code)
            and self.status_code in (None, kind.status_code)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLine:
    """A line that has a result."""

    line_no: int
    """0-based, in the input."""
    kind: Kind
    size: int
    """Bytes of its line in the result file, without the line end."""
    content: bytes
    """That line, or its beginning where it is longer than what was read."""

    @property
    def is_whole(self) -> bool:
        return len(self.content) == self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesPage:
    """Lines in the order of the input."""

    lines: Sequence[FoundLine]
    next_line: int
    """The first line number that the next page may have."""
    has_more: bool
    """Whether there may be lines from there on; a page may have fewer than its limit, or none, and more follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPart:
    """What a search has found in the next part of a batch's results."""

    lines: Sequence[FoundLine]
    next_line: int
    """The first line number that was not searched."""
    num_bytes: int


class LineReader(Protocol):
    """Reads lines of one batch that have a result; raises ServiceError where what keeps them is away."""

    @property
    def needs_database(self) -> bool:
        """Whether each call takes a connection."""

    def page(self, wanted: LineFilter, *, first_line: int, limit: int) -> LinesPage:
        """Return the next `limit` wanted lines from a line number on."""

    def find(self, line_no: int) -> FoundLine | None:
        """Return one line, or None where it has no result."""

    def search(self, needle: bytes, wanted: LineFilter, *, first_line: int) -> Iterator[SearchedPart]:
        """Yield the wanted lines whose bytes contain `needle`, part by part, from a line number on."""
