"""Lines of a chunk that are held back since a line before them, in whatever chunk of the batch, asks for the same."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.lines.reading import RawLine


class ChunkCopies:
    """`len()` is how many are held."""

    def __init__(self, pairs: Sequence[int] | None) -> None:
        """`pairs` as of `ChunkRef.copies`."""
        pairs = pairs or ()
        self._original_of = dict(zip(pairs[::2], pairs[1::2], strict=True))
        self._held: dict[int, list[RawLine]] = {}  # by the line that is computed for them

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, line: RawLine) -> bool:
        """Hold a line back if it is a copy; return whether it is."""
        original = self._original_of.get(line.line_no)
        if original is not None:
            self._held.setdefault(original, []).append(line)
        return original is not None

    def originals(self) -> list[int]:
        """Return the lines that are computed for those that are held."""
        return list(self._held)

    def pop_all(self, original: int) -> list[RawLine]:
        """Return the copies of a line, and hold them no longer."""
        return self._held.pop(original)

    def pop_first(self, original: int) -> RawLine:
        """Return the first copy of a line that gives no answer: it runs itself, and the others are copies of it."""
        first, *others = self._held.pop(original)
        if others:
            self._held[first.line_no] = others
        return first
