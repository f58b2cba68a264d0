"""The request of a line, found in its batch's input by the chunk that had it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import text
from sqlalchemy.orm import Session

from features.lines.reader import MAX_LINE_BYTES
from jobs.errors import NotFoundError, ServiceError
from jobs.files import find_kept
from jobs.lines.reading import LineSplitter
from jobs.settings import MIB
from jobs.states import TERMINAL_BATCH_STATES
from jobs.storage import Storage
from jobs.tables import Batch, File

NoRequest = Literal["deleted", "too_long", "too_far"]
"""Why there is no request: its input was deleted; it is longer than MAX_LINE_BYTES; no known line is near."""
_PIECE_BYTES = 256 * 1024
_MOST_BYTES = 256 * MIB
"""Read of an input for one line: without chunks, everything before it may have to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPlace:
    """Where to begin to read for a line: at an earlier line of the same object."""

    object_key: str
    first_line: int
    byte_start: int


def find_place(session: Session, batch: Batch, line_no: int) -> RequestPlace | None:
    """Return where a line of the input is; None where the input was deleted."""
    has_ended = batch.state in TERMINAL_BATCH_STATES
    if has_ended:
        file = find_kept(session, batch.tenant_id, batch.input_file_id)
    else:
        file = session.get_one(File, batch.input_file_id)  # a running batch keeps its input
    if file is None:
        return None
    values = {"batch_id": batch.id, "line_no": line_no, "object_key": file.object_key, "has_ended": has_ended}
    row = session.execute(_PLACE, values).one()
    return RequestPlace(object_key=row.object_key, first_line=row.first_line, byte_start=row.byte_start)


def read_request(storage: Storage, place: RequestPlace, line_no: int) -> bytes | NoRequest:
    """Return a line of the input, or why it is not read. Raises ServiceError."""
    splitter = LineSplitter(max_line_bytes=MAX_LINE_BYTES, first_line=place.first_line, byte_start=place.byte_start)
    key, last_read = place.object_key, place.byte_start + _MOST_BYTES
    try:
        size = storage.size(key)
        for piece in storage.iter_range(key, place.byte_start, min(size, last_read), chunk_bytes=_PIECE_BYTES):
            for line in splitter.feed(piece):
                if line.line_no == line_no:
                    return line.content or "too_long"
    except NotFoundError as error:
        raise ServiceError(f"the store has lost an input: {error}") from error
    if size > last_read:
        return "too_far"
    for line in splitter.finish():
        if line.line_no == line_no:
            return line.content or "too_long"
    raise ServiceError(f"line {line_no + 1} is not in the input {key}")


# The nearest chunk before the line, of the same object; lines that validation refused are in none. Chunks of a batch
# that ended long ago are gone, and after its end so are its segments, which its input file has then: their lines are
# read from the last chunk of that file on.
_PLACE = text("""
    WITH segment AS (
        SELECT object_key, first_line FROM input_segment
        WHERE batch_id = :batch_id AND first_line <= :line_no AND NOT :has_ended ORDER BY first_line DESC LIMIT 1
    ), begin AS (
        SELECT object_key, first_line, CAST(0 AS bigint) AS byte_start FROM segment
        UNION ALL SELECT :object_key, 0, 0 WHERE NOT EXISTS (SELECT FROM segment)
    )
    SELECT object_key, first_line, byte_start FROM begin
    UNION ALL
    (SELECT begin.object_key, chunk.first_line, chunk.byte_start FROM begin, chunk
    WHERE chunk.batch_id = :batch_id AND chunk.first_line <= :line_no
        AND chunk.segment_key IS NOT DISTINCT FROM (SELECT object_key FROM segment)
    ORDER BY chunk.first_line DESC LIMIT 1)
    ORDER BY first_line DESC, byte_start DESC LIMIT 1
""")
