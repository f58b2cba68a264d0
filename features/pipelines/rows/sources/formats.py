"""Reads the rows of a file in each format; errors name the place of the first unreadable row."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

from features.pipelines.rows.arrow_values import row_values
from features.pipelines.rows.sources.csv_dialects import SAMPLE_BYTES, Dialect, dialect_of
from features.pipelines.rows.sources.files import SourceFile, readable
from features.pipelines.rows.sources.row_groups import rows_at_once
from features.pipelines.rows.sources.source import Row
from jobs.errors import InputError
from tokenmill.packages import needed
from tokenmill.row_json import loads

MAX_ROW_BYTES = 16 << 20
MAX_COLUMNS = 16_384
"""Columns of CSV: as many as a sheet of a spreadsheet has."""
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_NO_OBJECT = 'it is not a JSON object, such as {"text": "…"}'
_ARRAY = "the file is one JSON array; write one object a line, such as with jq -c '.[]' IN.json > OUT.jsonl"
_BATCH_ROWS = 512
"""Rows of Parquet that are converted to Python at once; fewer if they exceed MAX_ROW_BYTES."""
_TEXTS = {"NONE", "STRING", "JSON", "BSON", "ENUM"}
"""Logical types that are read as dictionaries."""


def jsonl_rows(file: SourceFile) -> Iterator[Row]:
    """Yield the objects of a JSONL file; blank lines are skipped but counted."""
    number = 0
    with _opened(file) as stream:
        while line := stream.readline(MAX_ROW_BYTES + 1):
            number += 1
            if len(line) > MAX_ROW_BYTES:
                raise _bad(file, number, f"it has more than {MAX_ROW_BYTES:,} bytes")
            line = line.removeprefix(_BOM) if number == 1 else line
            if line.strip():
                yield Row(file.name, number, _object(file, number, line))


def _object(file: SourceFile, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = loads(line)
    except ValueError as error:
        is_array = number == 1 and line.lstrip().startswith(b"[")
        raise _bad(file, number, _ARRAY if is_array else f"it is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise _bad(file, number, _ARRAY if number == 1 and isinstance(value, list) else _NO_OBJECT)
    return value


class CsvHeader(NamedTuple):
    """The columns of a CSV file, and how it is read."""

    columns: list[str]
    dialect: Dialect


def csv_header(file: SourceFile) -> CsvHeader:
    """Return the header of a CSV file. Raise InputError if a name is missing or repeated, or there are too many."""
    with _records(file) as records:
        header = records.take(0)
    if header is None:
        raise InputError(f"{file.name} is empty. Its first line must name the columns.")
    require_names(header, name=file.name)
    return CsvHeader(header, records.dialect)


def require_names(header: Sequence[str], *, name: str) -> None:
    """Raise InputError if a column of a file has no name or that of another, or there are too many."""
    if len(header) > MAX_COLUMNS:
        raise InputError(
            f"{name}: the header names {len(header):,} columns; {MAX_COLUMNS:,} are allowed. Leave out columns "
            "that no prompt uses, or write JSONL."
        )
    seen: set[str] = set()
    for position, column in enumerate(header, start=1):
        if not column.strip():
            raise InputError(f"{name}: column {position} of the header has no name. Name every column once.")
        if column in seen:
            raise InputError(f"{name}: the header names {column!r} twice. Name every column once.")
        seen.add(column)


def csv_rows(file: SourceFile, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the records of a CSV file below its header; every value is a text."""
    with _records(file) as records:
        records.take(0)
        number = 0
        while (fields := records.take(number + 1)) is not None:
            if not fields:
                continue  # a blank line
            number += 1
            if len(fields) != len(columns):
                problem = f"it has {len(fields)} fields and the header {len(columns)}"
                raise _bad(file, number, problem, line=records.num_lines)
            yield Row(file.name, number, dict(zip(columns, fields, strict=True)))


class _TooLongError(Exception):
    """A record exceeds its maximum length."""


class _Records:
    """The records of a CSV file with a limit on each, as `csv.reader` accepts lines and records of any length."""

    def __init__(self, file: SourceFile, text: io.TextIOWrapper, dialect: Dialect) -> None:
        self.dialect = dialect
        self._file, self._text = file, text
        self._num_left = MAX_ROW_BYTES
        self._reader = csv.reader(self._lines(), delimiter=dialect.separator, strict=True)

    @property
    def num_lines(self) -> int:
        """Return how many lines were read so far."""
        return self._reader.line_num

    def take(self, number: int) -> list[str] | None:
        """Return the next record, [] for a blank line, None at the end. `number` is the row number for errors."""
        self._num_left = MAX_ROW_BYTES
        try:
            return next(self._reader, None)
        except csv.Error as error:
            raise _bad(self._file, number, str(error), line=self.num_lines) from None
        except UnicodeError:
            problem = f"it is not {self.dialect.encoding_name}"
            raise _bad(self._file, number, problem, line=self.num_lines + 1) from None
        except _TooLongError:
            problem = f"it has more than {MAX_ROW_BYTES:,} bytes"
            raise _bad(self._file, number, problem, line=self.num_lines + 1) from None

    def _lines(self) -> Iterator[str]:
        while line := self._text.readline(self._num_left + 1):  # in characters, each of at least one byte
            self._num_left -= len(line)
            if self._num_left < 0:
                raise _TooLongError
            if not line.isascii():
                line.encode()  # raises for what was not UTF-8: the decoder alone fails for a whole block of lines
            yield line


@contextmanager
def _records(file: SourceFile) -> Iterator[_Records]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))  # the library's global default is 128 KiB
    with _opened(file) as stream:
        dialect = dialect_of(stream.read(SAMPLE_BYTES), name=file.name, may_guess=file.may_guess)
        stream.seek(0)
        text = io.TextIOWrapper(stream, encoding=dialect.encoding, errors=dialect.errors, newline="")
        try:
            yield _Records(file, text, dialect)
        finally:
            text.detach()


def parquet_schema(file: SourceFile) -> Any:
    """Return the pyarrow.Schema of a Parquet file. Raise InputError if it is not one."""
    with _opened_parquet(file) as parquet:
        return parquet.schema_arrow.remove_metadata()


def parquet_rows(file: SourceFile) -> Iterator[Row]:
    """Yield the rows; a text that many rows share is multiplied only in batches of at most MAX_ROW_BYTES."""
    number = 0
    with _opened_parquet(file, is_bounded=True) as parquet:
        for batch in _batches(file, parquet):
            for part in _small_parts(file, batch, number):
                for values in _values(file, part):
                    number += 1
                    yield Row(file.name, number, values)


def _batches(file: SourceFile, parquet: Any) -> Iterator[Any]:
    number = 0
    for group in range(parquet.num_row_groups):
        rows = rows_at_once(file.name, parquet, group, max_rows=_BATCH_ROWS, max_bytes=MAX_ROW_BYTES)
        batches = parquet.iter_batches(batch_size=rows, row_groups=[group], use_threads=False)
        while (batch := _next_batch(file, batches, number)) is not None:
            number += batch.num_rows
            yield batch


def _values(file: SourceFile, batch: Any) -> Iterator[dict[str, Any]]:
    try:
        yield from row_values(batch)
    except InputError as error:
        raise InputError(f"{file.name}: {error.message}", code=error.code) from None


def _small_parts(file: SourceFile, batch: Any, number: int) -> Iterator[Any]:
    """Divide a batch whose first row is `number` + 1 into small ones. Raise InputError for a row that is too large."""
    if sum(map(_decoded_bytes, batch.columns)) <= MAX_ROW_BYTES:
        yield batch
    elif batch.num_rows == 1:
        raise _bad(file, number + 1, f"it has more than {MAX_ROW_BYTES:,} bytes")
    else:
        half = batch.num_rows // 2
        yield from _small_parts(file, batch.slice(0, half), number)
        yield from _small_parts(file, batch.slice(half), number + half)


def _decoded_bytes(array: Any) -> int:
    """Return the bytes of an array's values, counting repeated ones each time."""
    arrow, compute = needed("pyarrow", by="Parquet"), needed("pyarrow.compute", by="Parquet")
    kinds = arrow.types
    if isinstance(array, arrow.ExtensionArray):
        return _decoded_bytes(array.storage)
    if kinds.is_dictionary(array.type):
        sizes = compute.binary_length(array.dictionary).take(array.indices)
        return int(compute.sum(sizes).as_py() or 0) + int(array.indices.nbytes)
    if kinds.is_map(array.type):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return sum(_decoded_bytes(each.slice(start, end - start)) for each in (array.keys, array.items))
    if kinds.is_struct(array.type):
        return sum(map(_decoded_bytes, array.flatten()))
    if isinstance(array, arrow.ListArray | arrow.LargeListArray | arrow.FixedSizeListArray):
        return _decoded_bytes(array.flatten())
    return int(array.nbytes)


def _texts(schema: Any) -> list[str]:
    columns = map(schema.column, range(len(schema)))
    return [each.path for each in columns if each.physical_type == "BYTE_ARRAY" and each.logical_type.type in _TEXTS]


def _next_batch(file: SourceFile, batches: Any, number: int) -> Any:
    arrow = needed("pyarrow", by=file.name)
    try:
        return next(batches, None)
    except arrow.ArrowException as error:
        raise _bad(file, number + 1, f"it is damaged ({error})") from None


@contextmanager
def _opened_parquet(file: SourceFile, *, is_bounded: bool = False) -> Iterator[Any]:
    """Open a Parquet file; with `is_bounded` texts are read as dictionaries, so a shared text is in memory once."""
    arrow, parquet = needed("pyarrow", by=file.name), needed("pyarrow.parquet", by=file.name)
    with file.open() as stream, readable(file.name):
        try:
            opened = parquet.ParquetFile(stream, pre_buffer=False)
            if is_bounded and (texts := _texts(opened.schema)):
                opened = parquet.ParquetFile(stream, metadata=opened.metadata, pre_buffer=False, read_dictionary=texts)
        except arrow.ArrowException as error:
            raise InputError(f"{file.name} is not a Parquet file: {str(error).splitlines()[0]}") from None
        yield opened


@contextmanager
def _opened(file: SourceFile) -> Iterator[BinaryIO]:
    """Open the content of a file that may be compressed with gzip."""
    with file.open() as stream, readable(file.name):
        is_packed = stream.read(len(_GZIP)) == _GZIP
        stream.seek(0)
        if not is_packed:
            yield stream
            return
        try:
            with gzip.open(stream) as unpacked:
                yield cast(BinaryIO, unpacked)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"cannot unpack {file.name}: {error}. Compress it again, or give it unpacked.") from None


def _bad(file: SourceFile, number: int, problem: str, *, line: int | None = None) -> InputError:
    place = f"row {number}" if line is None else f"row {number} (line {line})"
    return InputError(f"{file.name}, {place}: {problem}. Correct it; no row was computed.", code="invalid_source")
