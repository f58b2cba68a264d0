"""Lines of a chunk that are held back because an earlier line of the batch, in any chunk, asks the same."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.lines.reading import RawLine


class ChunkCopies:
    """The held copies; `len()` is their number."""

    def __init__(self, pairs: Sequence[int] | None) -> None:
        """`pairs` are those of `ChunkRef.copies`."""
        pairs = pairs or ()
        self._original_of = dict(zip(pairs[::2], pairs[1::2], strict=True))
        self._held: dict[int, list[RawLine]] = {}  # by the line that is computed for them
        self._stand_ins: set[int] = set()  # copies that were computed because their original gave no answer

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
        """Remove and return the copies of a line."""
        return self._held.pop(original)

    def pop_unanswered(self, original: int) -> list[RawLine]:
        """Return the copies to run themselves when a line gives no answer: the first, with the others as its copies.

        If the line was such a first copy itself, return all: after two failures all will probably fail, and one per
        round would take as many rounds as there are copies.
        """
        first, *others = self._held.pop(original)
        if original in self._stand_ins:
            return [first, *others]
        self._stand_ins.add(first.line_no)
        if others:
            self._held[first.line_no] = others
        return [first]
