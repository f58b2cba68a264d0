"""Lines of a batch that has not ended: read from its results so far, in the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

import orjson
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.lines.reader import MAX_LINE_BYTES, MAX_SHOWN_BYTES, FoundLine, LineFilter, LinesPage, SearchedPart
from jobs.batches.page_ends import end_of_page
from jobs.database import transaction
from jobs.errors import GoneError
from jobs.lines.line_index import kind_of
from jobs.partitions import has_partition
from jobs.settings import MIB

_WINDOW = 100_000
"""Line numbers of one page: few of the lines may be wanted, and each has to be looked at."""
_CANDIDATES = 1000
"""Lines that a page of a code reads at most: they have it somewhere, and their error may have another."""
_PAGE_BYTES = 64 * MIB
"""A page reads no further line after these: failed ones are read whole, for their codes."""
_READ_BYTES = 4 * MIB
_READ_ROWS = 250
_SEARCHED_BYTES = 4 * MIB
_SEARCHED_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLines:
    """Reads results of one batch, each call in a transaction of its own."""

    maker: sessionmaker[Session]
    batch_id: str
    day: date

    @property
    def needs_database(self) -> bool:
        return True

    def page(self, wanted: LineFilter, *, first_line: int, limit: int) -> LinesPage:
        """Return the next `limit` wanted lines from a line number on; fewer where they are not in one window."""
        end = first_line + _WINDOW
        with self._kept() as session:
            candidates = self._candidates(session, wanted, first_line, limit=limit)
            lines, num_read = self._lines_of(session, wanted, candidates, limit=limit)
            if len(lines) > limit:
                return LinesPage(lines=lines[:limit], next_line=lines[limit - 1].line_no + 1, has_more=True)
            if num_read < len(candidates) or num_read >= max(limit + 1, _CANDIDATES):
                return LinesPage(lines=lines, next_line=candidates[num_read - 1].line_no + 1, has_more=True)
            has_more = bool(session.scalar(_HAS_LINE, self._values(first=end)))
        after = lines[-1].line_no + 1 if lines else first_line
        return LinesPage(lines=lines, next_line=end if has_more else after, has_more=has_more)

    def find(self, line_no: int) -> FoundLine | None:
        """Return one line, or None where it has no result yet."""
        with self._kept() as session:
            row = session.execute(_ONE, self._values(first=line_no, most=MAX_LINE_BYTES)).first()
        return None if row is None else _found(row)

    def search(self, needle: bytes, wanted: LineFilter, *, first_line: int) -> Iterator[SearchedPart]:
        """Yield the wanted lines whose bytes contain `needle`, page by page, from a line number on."""
        has_more = True
        while has_more:
            with self._kept() as session:
                last, has_more = end_of_page(
                    session,
                    _SIZES,
                    self._values(),
                    after=first_line - 1,
                    limit=_SEARCHED_ROWS,
                    max_bytes=_SEARCHED_BYTES,
                )
                rows = session.execute(_ALL, self._values(first=first_line, last=last)).all()
            hits = [_found(row) for row in rows if needle in row.content]
            yield SearchedPart(
                lines=[line for line in hits if wanted.takes(line.kind)],
                next_line=last + 1,
                num_bytes=sum(row.size for row in rows),
            )
            first_line = last + 1

    @contextmanager
    def _kept(self) -> Iterator[Session]:
        """Open a transaction. Raises GoneError where the results were deleted, also while it read them.

        A batch whose search began while it ran may have ended since.
        """
        with transaction(self.maker) as session:
            yield session
            # After the read: rows that were purged meanwhile must not look like the end.
            if session.scalar(_IS_DELETED, {"batch_id": self.batch_id}):
                raise GoneError(f"The results of batch {self.batch_id!r} were deleted.", code="results_deleted")
            if not has_partition(session, self.day):
                raise GoneError(
                    f"The results of batch {self.batch_id!r} are no longer kept line by line.", code="results_expired"
                )

    def _candidates(self, session: Session, wanted: LineFilter, first_line: int, *, limit: int) -> Sequence[Any]:
        """Return numbers and sizes of lines of the window that may be wanted."""
        code = None if wanted.code is None else orjson.dumps(wanted.code)
        values = self._values(
            first=first_line,
            end=first_line + _WINDOW,
            limit=limit + 1 if code is None else max(limit + 1, _CANDIDATES),
            is_error=wanted.is_error if code is None else True,  # no other line has a code
            status_code=wanted.status_code,
            code=None if code is None else b'"code":' + code,
            # Other engines may have numbers as codes.
            bare_code=b'"code":' + code[1:-1] if code is not None and code[1:-1].isdigit() else None,
        )
        return session.execute(_WANTED, values).all()

    def _lines_of(
        self, session: Session, wanted: LineFilter, candidates: Sequence[Any], *, limit: int
    ) -> tuple[list[FoundLine], int]:
        """Return wanted lines, more than `limit` at once, and how many candidates were read for them."""
        lines, num_read, num_bytes = list[FoundLine](), 0, 0
        while num_read < len(candidates) and len(lines) <= limit and num_bytes < _PAGE_BYTES:
            some = list(_read_at_once(candidates[num_read : num_read + _READ_ROWS]))
            numbers = [row.line_no for row in some]
            rows = session.execute(_NUMBERED, self._values(numbers=numbers, whole=MAX_LINE_BYTES, most=MAX_SHOWN_BYTES))
            found = (_found(row, most=MAX_SHOWN_BYTES) for row in rows)
            lines += [line for line in found if wanted.takes(line.kind)]
            num_read += len(some)
            num_bytes += sum(map(_num_bytes_read, some))
        return lines, num_read

    def _values(self, **others: object) -> dict[str, object]:
        return {"day": self.day, "batch_id": self.batch_id, **others}


def _read_at_once(candidates: Sequence[Any]) -> Iterator[Any]:
    """Yield the first candidates, until they have _READ_BYTES."""
    num_bytes = 0
    for row in candidates:
        yield row
        num_bytes += _num_bytes_read(row)
        if num_bytes >= _READ_BYTES:
            return


def _num_bytes_read(row: Any) -> int:
    size: int = row.size
    return min(size, MAX_LINE_BYTES if row.is_error else MAX_SHOWN_BYTES)


def _found(row: Any, *, most: int | None = None) -> FoundLine:
    """Return a line with at most this many bytes, its kind taken from all that was read of it."""
    content = bytes(row.content)
    try:
        kind = kind_of(content, is_error=row.is_error, status_code=row.status_code)
    except orjson.JSONDecodeError:  # its beginning alone was read
        kind = kind_of(b'{"error":null,"response":null}', is_error=row.is_error, status_code=row.status_code)
    return FoundLine(line_no=row.line_no, kind=kind, size=row.size, content=content[:most])


_COUNTED = """
    batch_day = :day AND batch_id = :batch_id
    -- What a validation writes counts once its batch starts.
    AND result_no <= (
        SELECT num_completed + num_failed FROM batch WHERE id = :batch_id AND results_deleted_at IS NULL
    )
"""

_IS_DELETED = text("SELECT results_deleted_at IS NOT NULL FROM batch WHERE id = :batch_id")

_WANTED = text(f"""
    SELECT line_no, is_error, octet_length(line) AS size
    FROM result WHERE {_COUNTED} AND line_no >= :first AND line_no < :end
        AND (CAST(:is_error AS boolean) IS NULL OR is_error = :is_error)
        AND (CAST(:status_code AS integer) IS NULL OR status_code = :status_code)
        AND (CAST(:code AS bytea) IS NULL OR position(CAST(:code AS bytea) IN line) > 0
            OR position(CAST(:bare_code AS bytea) IN line) > 0)
    ORDER BY line_no LIMIT :limit
""")

# One look-up by the primary key each: as one condition for all, Postgres may go through all results of the batch.
_NUMBERED = text("""
    SELECT one.* FROM unnest(CAST(:numbers AS integer[])) WITH ORDINALITY AS wanted (line_no, position)
    CROSS JOIN LATERAL (
        SELECT line_no, is_error, status_code, octet_length(line) AS size,
            substring(line FROM 1 FOR CASE WHEN is_error THEN :whole ELSE :most END) AS content
        FROM result WHERE batch_day = :day AND batch_id = :batch_id AND line_no = wanted.line_no LIMIT 1
    ) AS one
    ORDER BY wanted.position
""")

_ONE = text(f"""
    SELECT line_no, is_error, status_code, octet_length(line) AS size, substring(line FROM 1 FOR :most) AS content
    FROM result WHERE {_COUNTED} AND line_no = :first
""")

_ALL = text(f"""
    SELECT line_no, is_error, status_code, octet_length(line) AS size, line AS content
    FROM result WHERE {_COUNTED} AND line_no >= :first AND line_no <= :last ORDER BY line_no
""")

_SIZES = text(f"""
    SELECT line_no, octet_length(line) FROM result WHERE {_COUNTED} AND line_no > :after ORDER BY line_no LIMIT :limit
""")

_HAS_LINE = text(f"SELECT EXISTS (SELECT FROM result WHERE {_COUNTED} AND line_no >= :first)")
