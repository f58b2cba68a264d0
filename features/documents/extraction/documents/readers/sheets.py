"""Excel: one page per sheet, one line per row that is not empty, and the positions of cells.

Values as stored by Excel: numbers with up to 15 digits, dates in ISO 8601, last results of formulas.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version

import python_calamine

from features.documents.extraction.documents.builder import TextBuilder
from features.documents.extraction.documents.cell_text import cell_text
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.readers.package import Package
from features.documents.extraction.errors import DocumentCode, DocumentError

PARSER = f"sheets 2 python-calamine {version('python-calamine')}"

_CELL = re.compile(rb"<(?:\w+:)?c\s[^>]{0,200}?\br=[\"']([A-Za-z]{1,99})(\d{1,99})[\"']")
_MOST_COLUMNS, _MOST_ROWS = 16_384, 1_048_576  # limits of Office Open XML for a sheet


def read_xlsx(content: bytes, limits: Limits, progress: Progress) -> Document:
    """Read a workbook. Raises DocumentError, with the sheet as page if its cells are too far apart."""
    package = Package.open(content, limits)
    for number, member in enumerate(_sheets(package)):
        progress.page(number)
        _check_extent(package.read(member), number, limits)
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(content))
    except python_calamine.CalamineError as error:
        raise DocumentError(DocumentCode.DAMAGED, f"the workbook is damaged: {error}") from None
    builder = TextBuilder(limits)
    for number, name in enumerate(book.sheet_names):
        progress.page(number)
        builder.page()
        builder.text(name)
        builder.heading(builder.length - len(name), level=1)
        _put(_rows(book, number), builder, number)
    return builder.build(Format.XLSX, PARSER, _notes(book))


def _notes(book: python_calamine.CalamineWorkbook) -> tuple[str, ...]:
    hidden = [sheet.name for sheet in book.sheets_metadata if sheet.visible != python_calamine.SheetVisibleEnum.Visible]
    return (f"{len(hidden)} hidden sheets were read as well, the first is {hidden[0]}",) if hidden else ()


def _sheets(package: Package) -> list[str]:
    """Return the members that are sheets, by name or by the workbook's links, in file order."""
    linked = {link.member for link in package.links("xl/workbook.xml") if link.kind == "worksheet"}
    return [name for name in package.members if "/worksheets/sheet" in name or name in linked]


def _check_extent(sheet: bytes, number: int, limits: Limits) -> None:
    """Raise if a sheet's cells span too large an area, since calamine also holds the empty cells in between."""
    rows, columns = _Extent(), _Extent()
    for match in _CELL.finditer(sheet):
        column, row = _column(match[1].upper()), int(match[2])
        if column > _MOST_COLUMNS or row > _MOST_ROWS:
            message = (
                f"sheet {number + 1} has a cell {(match[1] + match[2]).decode()}, which is beyond the limits of Excel"
            )
            raise DocumentError(DocumentCode.DAMAGED, message, number)
        columns.add(column)
        rows.add(row)
    size = rows.size * columns.size
    if size > limits.max_cells:
        message = (
            f"sheet {number + 1} spans {rows.size} rows × {columns.size} columns; {limits.max_cells} cells are read. "
            "Delete cells far from the rest"
        )
        raise DocumentError(DocumentCode.TOO_MANY_ROWS, message, number)


class _Extent:
    """The range between the smallest and largest of some numbers."""

    def __init__(self) -> None:
        self._least, self._greatest = 1 << 30, -1

    def add(self, number: int) -> None:
        self._least, self._greatest = min(self._least, number), max(self._greatest, number)

    @property
    def size(self) -> int:
        return max(self._greatest - self._least + 1, 0)


def _column(letters: bytes) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + letter - 64
    return number


def _rows(book: python_calamine.CalamineWorkbook, number: int) -> Iterator[tuple[int, int, Sequence[object]]]:
    """Yield each nonempty row: its number, its first column, its values."""
    sheet = book.get_sheet_by_index(number)
    if sheet.start is None:
        return
    for row, values in enumerate(sheet.iter_rows()):
        if any(value != "" for value in values):
            yield row, sheet.start[1], values


def _put(rows: Iterator[tuple[int, int, Sequence[object]]], builder: TextBuilder, table: int) -> None:
    for row, first, values in rows:
        pending = "\n"
        for column, value in enumerate(values, start=first):
            if value != "":
                builder.text(pending)
                start, pending = builder.length, ""
                builder.text(cell_text(value))
                builder.cell(start, table=table, row=row, column=column)
            pending += "\t"
