"""Lines of a node, counted while they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice


class CountedLines:
    """An iterator of lines that counts them."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self.num_lines = 0

    def is_empty(self) -> bool:
        """Return whether there is no line; call before iterating."""
        first = list(islice(self._lines, 1))
        self._lines = chain(first, self._lines)
        return not first

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.num_lines += 1
            yield line
