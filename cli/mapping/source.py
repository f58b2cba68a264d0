"""The source of a map: what pipelines read, and standard input and workbooks besides.

Workbooks are read here because the process is the user's own: a service reads files of others in confined processes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from cli.disk.standard_input import STANDARD_INPUT
from features.documents.extraction.documents.cell_text import cell_text
from features.pipelines.rows.sources.files import Format, SourceFile, readable
from features.pipelines.rows.sources.formats import require_names
from features.pipelines.rows.sources.reading import open_source, source_of
from features.pipelines.rows.sources.source import Row, Source
from jobs.errors import InputError
from tokenmill.packages import needed


def map_source(source: str, *, stdin_copy: Path | None) -> Source:
    """Return the source of a map; `stdin_copy` has what `-` stands for. Raises InputError if it is not one table."""
    if source == STANDARD_INPUT and stdin_copy is not None:
        return _lines_of(stdin_copy)
    path = Path(source).expanduser()
    return _sheet_of(path) if path.suffix.lower() == ".xlsx" and not path.is_dir() else open_source(source)


def _lines_of(copy: Path) -> Source:
    name = "standard input"
    file = SourceFile(
        name=name, format=Format.JSONL, open=lambda: copy.open("rb"), identity=lambda: _digest(copy, name=name)
    )
    return source_of([file], description=name)


def _sheet_of(path: Path) -> Source:
    """Return the rows of a workbook's only sheet with cells, below its header; every value is a text."""
    name, records = _read_sheet(path)
    header = next(records, None)
    if header is None:
        raise InputError(f"{path} has no cells. The first row of its sheet must name the columns.")
    columns = [cell_text(value) for value in header]
    require_names(columns, name=str(path))
    return Source(
        description=str(path),
        columns=columns,
        schema=None,
        read=lambda: _rows(path, columns),
        identity=lambda: _digest(path, name=str(path)),
        notes=[f"{path} is read from its sheet {name!r}"],
    )


def _rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    _, records = _read_sheet(path)
    for number, values in enumerate(islice(records, 1, None), start=1):
        if any(value != "" for value in values):
            yield Row(str(path), number, dict(zip(columns, map(cell_text, values), strict=True)))


def _read_sheet(path: Path) -> tuple[str, Iterator[Sequence[Any]]]:
    calamine = needed("python_calamine", by=str(path), extra="documents")
    with readable(str(path)):
        content = path.read_bytes()
    try:
        book = calamine.load_workbook(io.BytesIO(content))
        sheets = [sheet for sheet in map(book.get_sheet_by_name, book.sheet_names) if sheet.start is not None]
    except calamine.CalamineError as error:
        raise InputError(f"{path} is no workbook that can be read: {error}. Save it anew, or as CSV.") from None
    if len(sheets) > 1:
        names = ", ".join(repr(sheet.name) for sheet in sheets)
        raise InputError(f"{path} has several sheets with cells: {names}. Keep one, or save one as CSV.")
    return (sheets[0].name, sheets[0].iter_rows()) if sheets else ("", iter(()))


def _digest(path: Path, *, name: str) -> str:
    with path.open("rb") as file:
        return f"{name}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
