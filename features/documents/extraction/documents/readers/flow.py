"""Text in blocks, lines and cells, written with the separators that they imply: a line end between blocks, a tab
between cells, nothing at the start of either.

Readers report where elements begin and end.
"""

from __future__ import annotations

import re

from features.documents.extraction.documents.builder import TextBuilder

_BLANKS = re.compile(r"[ \t\r\n\f]+")


class Flow:
    """Holds back separators until text follows."""

    def __init__(self, builder: TextBuilder) -> None:
        self._builder = builder
        self._pending = ""
        self._is_blank = False
        self._is_start = True
        self._starts: list[int | None] = []  # starts of open headings and cells; None until they have text
        self._tables: list[_Table] = []
        self._num_tables = 0

    def restart(self) -> None:
        """Forget pending separators: a page begins."""
        self._pending, self._is_blank, self._is_start = "", False, True

    def words(self, text: str) -> None:
        """Add text whose blanks only separate words."""
        spaced = _BLANKS.sub(" ", text)
        self._is_blank = self._is_blank or spaced.startswith(" ")
        if spaced.strip(" "):
            self.exact(spaced.strip(" "))
        self._is_blank = self._is_blank or spaced.endswith(" ")

    def exact(self, text: str) -> None:
        """Add text as it is."""
        if not text:
            return
        between = self._pending or (" " if self._is_blank else "")
        self._builder.text(between.strip(" \n") if self._is_start else between)
        self._pending, self._is_blank, self._is_start = "", False, False
        self._starts = [self._builder.length if start is None else start for start in self._starts]
        self._builder.text(text)

    def line_break(self) -> None:
        """End a line; several in a row leave empty lines."""
        if not self._pending.endswith("\t"):
            self._pending += "\n"
            self._is_blank = False

    def block(self, *, ends_row: bool = False) -> None:
        """Begin or end a block here; ignored at the start of a cell, unless its row begins or ends too."""
        if ends_row or not self._pending.endswith("\t"):
            self._pending = self._pending.replace("\t", "") or "\n"
            self._is_blank = False

    def enter_heading(self) -> None:
        self._starts.append(None)

    def leave_heading(self, level: int) -> None:
        start = self._starts.pop()
        if start is not None:
            self._builder.heading(start, level=level)

    def enter_table(self) -> None:
        self.block(ends_row=True)
        self._tables.append(_Table(self._num_tables))
        self._num_tables += 1

    def leave_table(self) -> None:
        self._tables.pop()
        self.block(ends_row=True)

    def enter_row(self) -> None:
        self.block(ends_row=True)
        if self._tables:
            self._tables[-1].next_row(self._builder.length)

    def enter_cell(self, *, columns: int = 1, rows: int = 1) -> None:
        """Begin a cell that spans some columns and rows."""
        self._starts.append(None)
        if self._tables and self._tables[-1].next_cell(columns, rows):
            begins_line = "" if self._builder.length > self._tables[-1].row_start else "\n"
            self._pending = begins_line + "\t" * (self._pending.count("\t") + 1)
            self._is_blank = False

    def leave_cell(self) -> None:
        start = self._starts.pop()
        if start is not None and self._tables:
            self._tables[-1].mark(self._builder, start)


class _Table:
    """Positions of a table's cells, some of which may span others."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._row, self._column = -1, -1
        self._next = 0
        self._taken: dict[int, int] = {}  # by column: the first free row
        self.row_start = 0

    def next_row(self, start: int) -> None:
        self._row += 1
        self.row_start = start
        self._next = 0

    def next_cell(self, columns: int, rows: int) -> bool:
        """Advance by a cell; return whether its row has one before it."""
        self._row = max(self._row, 0)
        is_later = self._next > 0
        while self._taken.get(self._next, 0) > self._row:
            self._next += 1
        self._column = self._next
        self._next += columns
        for column in range(self._column, self._next):
            self._taken[column] = self._row + rows
        return is_later

    def mark(self, builder: TextBuilder, start: int) -> None:
        builder.cell(start, table=self._number, row=self._row, column=self._column)
