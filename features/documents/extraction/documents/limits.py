"""Limits on the content of a document and on the cost of reading it; readers enforce them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


class Progress:
    """Receives a reader's progress, so that its parent can report where it was ended. This one ignores it."""

    def page(self, number: int) -> None:
        """Report that a page, counted from 0, is being read."""

    def picture(self) -> None:
        """Report that this page is a picture, which takes longer and more memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All inclusive. The first six are limits of a document, the others of the process that reads it.

    Time is processor time, so that load on the machine costs no document its result. The largest files in practice may
    need all of `seconds` and `memory_bytes`; a small one gets less of both (`of`).
    """

    max_bytes: int = 512 << 20
    max_characters: int = 50_000_000
    max_pages: int = 10_000
    max_cells: int = 5_000_000  # of one sheet, including empty cells in between
    max_unpacked_bytes: int = 1 << 30  # of the content of a zip
    max_nesting: int = 3  # mails within mails
    memory_bytes: int = 2 << 30  # of address space
    seconds: float = 60.0
    base_memory_bytes: int = 320 << 20  # for an empty file, beyond what the process has loaded
    memory_per_byte: int = 1024
    base_seconds: float = 8.0  # for an empty file
    seconds_per_mib: float = 12.0
    seconds_per_picture: float = 60.0  # extra for each page read by OCR, which also gets all memory
    times_by_clock: float = 5.0  # factor for the limit by the clock
    documents_per_process: int = 200  # of one owner; documents without an owner get a process each

    def of(self, num_bytes: int) -> Self:
        """Return the limits of a file of this size."""
        return replace(
            self,
            seconds=min(self.seconds, self.base_seconds + self.seconds_per_mib * num_bytes / (1 << 20)),
            base_memory_bytes=min(self.memory_bytes, self.base_memory_bytes + self.memory_per_byte * num_bytes),
        )

    def whole(self) -> Self:
        """Return limits that are the same for every size."""
        return replace(self, base_seconds=self.seconds, base_memory_bytes=self.memory_bytes)

    @property
    def clock_seconds(self) -> float:
        return self.seconds * self.times_by_clock

    def needs_memory(self) -> str:
        """Return the message for a document that needs too much memory."""
        num_bytes = min(self.base_memory_bytes, self.memory_bytes)
        return f"reading it takes more than {num_bytes >> 20} MiB of memory; split it"

    def needs_time(self) -> str:
        """Return the message for a document that takes too long."""
        return f"reading it takes more than {self.seconds:.3g} s; split it"
