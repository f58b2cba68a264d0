"""How much a document may hold, and what reading it may cost.

Knows no format: readers hold themselves to these.
"""

from __future__ import annotations

from dataclasses import dataclass


class Progress:
    """Hears how far a reader is: who ends it can then say where. This one does nothing with it."""

    def page(self, number: int) -> None:
        """Hear that a page, from 0, is being read."""

    def picture(self) -> None:
        """Hear that this page is a picture, which takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All inclusive. The first six are about a document, the others about the process that reads it."""

    max_bytes: int = 512 << 20
    max_characters: int = 50_000_000
    max_pages: int = 10_000
    max_cells: int = 5_000_000  # of one sheet, empty ones among the others too
    max_unpacked_bytes: int = 1 << 30  # of what lies in a zip
    max_nesting: int = 3  # mails within mails
    memory_bytes: int = 2 << 30
    seconds: float = 60.0
    seconds_per_picture: float = 60.0  # beside those, for each page that is read by OCR
    documents_per_process: int = 200  # of one owner; those of nobody, and files, have a process each

    def needs_memory(self) -> str:
        """Return what is said of a document that needs too much."""
        return f"reading it takes more than {self.memory_bytes >> 20} MiB of memory; split it"
