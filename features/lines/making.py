"""Make the index of result files that have none: batches of earlier releases, restored stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jobs.errors import ServiceError
from jobs.lines.line_index import Kind, LineIndexWriter, kind_of
from jobs.lines.output_lines import line_id
from jobs.lines.reading import RawLine, iter_lines
from jobs.settings import MIB
from jobs.storage import Storage

_MAX_LINE_BYTES = 64 * MIB
_MOST_BLANK = 10_000_000
"""Consecutive line numbers without a result after which the files cannot be the batch's."""
_ID = re.compile(rb'\{"id":"([^"]*)"')
_ID_BYTES = 100
_STATUS = b'"response":{"status_code":'


@dataclass(frozen=True, slots=True)
class _Next:
    """The next line of a result file."""

    id: str
    kind: Kind
    size: int


def write_index(
    storage: Storage,
    write: Callable[[bytes], object],
    batch_id: str,
    *,
    output_key: str | None,
    errors_key: str | None,
) -> None:
    """Write the index of result files, which name each line by an id made from its number.

    Both are in the order of the input, so one pass over the numbers finds every line. Raises NotFoundError where the
    store lacks a file, ServiceError where one is not the batch's.
    """
    index = LineIndexWriter(write)
    files = [_lines(storage, output_key, is_error=False), _lines(storage, errors_key, is_error=True)]
    heads = [next(file, None) for file in files]
    line_no = last_found = -1
    while any(heads):
        line_no += 1
        wanted = line_id(batch_id, line_no)
        for number, head in enumerate(heads):
            if head is not None and head.id == wanted:
                index.add_one(line_no, head.kind, head.size)
                heads[number] = next(files[number], None)
                last_found = line_no
        if line_no - last_found > _MOST_BLANK:
            raise ServiceError(f"the result files of batch {batch_id} have lines that are not of its input")
    index.finish()


def _lines(storage: Storage, key: str | None, *, is_error: bool) -> Iterator[_Next]:
    if key is None:
        return
    for line in iter_lines(storage.iter_chunks(key), max_line_bytes=_MAX_LINE_BYTES):
        content = _beginning(storage, key, line) if line.content is None else line.content
        match = _ID.match(content)
        if match is None:
            raise ServiceError(f"line {line.line_no + 1} of {key!r} is no result")
        status = _status(content)
        kind = (
            Kind(is_error, status, None)
            if line.content is None
            else kind_of(content, is_error=is_error, status_code=status)
        )
        yield _Next(match[1].decode(), kind, line.byte_end - line.byte_start)


def _beginning(storage: Storage, key: str, line: RawLine) -> bytes:
    return storage.read_range(key, line.byte_start, line.byte_start + _ID_BYTES)


def _status(content: bytes) -> int | None:
    """Return the status of a line of a result file; None where it has no response."""
    found = content.find(_STATUS)
    if found < 0:
        return None
    begin = found + len(_STATUS)
    return int(content[begin : content.index(b",", begin)])
