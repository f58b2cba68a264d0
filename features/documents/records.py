"""Records of an extraction for its owner, read page by page from the records file.

While documents are asked, the file holds provisional records. Its cursors differ from those of the final file,
since the same position holds another record there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from features.documents.states import TERMINAL_EXTRACTION_STATES, ExtractionState
from features.documents.tables import Extraction
from jobs import files
from jobs.errors import ConflictError, GoneError, InputError
from jobs.settings import MIB
from jobs.storage import Storage

_FINAL_FROM = 0
_PROVISIONAL_FROM = 2**52
"""Cursors of provisional records begin here,"""
_EACH_FROM = 2**46
"""and those of each file of them that much further: no file is that large. All are exact as floating-point numbers."""
MAX_PAGE_BYTES = 4 * MIB
"""A page ends after the record that exceeds this."""
MAX_RECORD_BYTES = 64 * MIB
_READ_AT_ONCE = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPage:
    """A page of records, in the order of their documents."""

    content: bytes
    """NDJSON."""
    after: int
    """The cursor of the next page: the number of bytes of the file read so far."""
    has_more: bool
    is_final: bool
    """Whether the extraction is completed; if not, there may be no records yet, or they may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsFile:
    """The object that holds the records."""

    object_key: str
    size_bytes: int
    cursors_from: int = _FINAL_FROM
    """Offset added to positions in the file to make cursors."""

    @property
    def is_final(self) -> bool:
        """Tell whether these are the final records."""
        return self.cursors_from == _FINAL_FROM


def latest_file(session: Session, extraction: Extraction) -> RecordsFile | None:
    """Return the file of the current records, or None if there are none yet. Raises what `records_file` raises."""
    is_over = ExtractionState(extraction.state) in TERMINAL_EXTRACTION_STATES
    if extraction.output_file_id is None and not is_over:
        return None
    if extraction.state == ExtractionState.COMPLETED or extraction.output_file_id is None:
        return records_file(session, extraction)
    # A file replaces another once it has twice as many records.
    cursors_from = _PROVISIONAL_FROM + extraction.num_provisional.bit_length() * _EACH_FROM
    return replace(_kept(session, extraction, extraction.output_file_id), cursors_from=cursors_from)


def records_file(session: Session, extraction: Extraction) -> RecordsFile:
    """Return the file of the final records. Raises ConflictError if there is none, GoneError if it was deleted."""
    if extraction.state != ExtractionState.COMPLETED:
        what = "will have none" if ExtractionState(extraction.state) in TERMINAL_EXTRACTION_STATES else "has none yet"
        raise ConflictError(
            f"Extraction {extraction.id!r} is {extraction.state} and {what}: results are there once it is completed.",
            code="no_results",
        )
    assert extraction.output_file_id is not None, "a completed one has its file"
    return _kept(session, extraction, extraction.output_file_id)


def _kept(session: Session, extraction: Extraction, file_id: str) -> RecordsFile:
    file = files.find_kept(session, extraction.tenant_id, file_id)
    if file is None:
        raise GoneError(
            f"The results of extraction {extraction.id!r} were in file {file_id!r}, which was deleted or has expired.",
            code="results_deleted",
        )
    return RecordsFile(object_key=file.object_key, size_bytes=file.size_bytes)


def no_page(after: int) -> RecordsPage:
    """Return the empty page of an extraction without records."""
    return RecordsPage(content=b"", after=after, has_more=False, is_final=False)


def read_page(storage: Storage, file: RecordsFile, *, after: int, limit: int) -> RecordsPage:
    """Return up to `limit` records after a cursor.

    Raises InputError for an invalid cursor, ConflictError for one of provisional records that may have changed since.
    """
    given_from = _FINAL_FROM if after < _PROVISIONAL_FROM else after - after % _EACH_FROM
    if given_from not in (_FINAL_FROM, file.cursors_from):
        raise ConflictError(
            "The extraction has gone on since that page was read, and records have changed. Read them again from "
            "after=0.",
            code="results_changed",
        )
    page = _read(storage, file, after=after and after - file.cursors_from, limit=limit)
    return replace(page, after=page.after + file.cursors_from)


def _read(storage: Storage, file: RecordsFile, *, after: int, limit: int) -> RecordsPage:
    _check_cursor(storage, file, after)
    content = bytearray()
    num_records = 0
    for piece in storage.iter_chunks(file.object_key, after, chunk_bytes=_READ_AT_ONCE):
        start = len(content)
        content += piece
        while (end := content.find(b"\n", start)) >= 0:
            num_records += 1
            start = end + 1
            if num_records == limit or start >= MAX_PAGE_BYTES:
                return _page(bytes(content[:start]), after, file)
    return _page(bytes(content), after, file)


def _page(content: bytes, after: int, file: RecordsFile) -> RecordsPage:
    reached = after + len(content)
    return RecordsPage(content=content, after=reached, has_more=reached < file.size_bytes, is_final=file.is_final)


def _check_cursor(storage: Storage, file: RecordsFile, after: int) -> None:
    is_start = after == 0 or (
        0 < after <= file.size_bytes and storage.read_range(file.object_key, after - 1, after) == b"\n"
    )
    if not is_start:
        raise InputError(
            f"after is {after}, where no record begins; give 0, or the x-next-after of a page.",
            param="after",
            code="invalid_value",
        )
