"""Bodies of lines."""

from __future__ import annotations

from typing import Any, Literal, Self

import orjson

from api.schemas.errors import ErrorObject
from api.schemas.wire import WireModel
from features.lines.content import shown
from features.lines.http.access import OpenedLines, WholeLine
from features.lines.reader import FoundLine, LinesPage
from features.lines.requests import NoRequest
from features.lines.searching import Hits


class LineObject(WireModel):
    object: Literal["batch.line"] = "batch.line"
    number: int
    """In the input, from 1; blank lines count."""
    custom_id: str | None
    failed: bool
    """Whether it is in the error file."""
    status_code: int | None
    """Null if there is no response."""
    code: str | None
    """The error's code."""
    size_bytes: int
    """Of its result."""
    excerpt: str | None
    """The first 300 characters of the answer's text or of the error's message; null if there is no text."""

    @classmethod
    def of(cls, line: FoundLine) -> Self:
        return cls(**_fields(line))


class WholeLineObject(LineObject):
    """A line with its whole result and its request."""

    result: dict[str, Any] | None
    """The line of the output or error file; null if it has more than 4 MiB."""
    request: Any | None
    """The line of the input, as text if it is not JSON or nested more than 250 levels deep."""
    no_request: NoRequest | None
    """Why `request` is null: the input file was deleted or has expired; the line has more than 4 MiB; it is more than
    256 MiB behind the last line whose place is known, long after the end."""

    @classmethod
    def of_whole(cls, whole: WholeLine) -> Self:
        request = whole.request
        return cls(
            **_fields(whole.line),
            result=orjson.loads(whole.line.content) if whole.line.is_whole else None,
            request=_parsed(request) if isinstance(request, bytes) else None,
            no_request=None if isinstance(request, bytes) else request,
        )


class LineList(WireModel):
    object: Literal["list"] = "list"
    data: list[LineObject]
    next_after: int
    """The `after` of the next page."""
    has_more: bool
    """Whether lines may follow; a page may have fewer lines than its limit, or none, and more follow."""
    batch_status: str
    """The status of the batch before the page was read."""

    @classmethod
    def of(cls, page: LinesPage, lines: OpenedLines) -> Self:
        return cls(
            data=[LineObject.of(line) for line in page.lines],
            next_after=page.next_line,
            has_more=page.has_more,
            batch_status=lines.batch_status,
        )


class SearchProgress(WireModel):
    """How far a search is."""

    searched_bytes: int
    next_after: int
    """The `after` with which another search continues."""
    has_ended: bool
    """Whether this is the last row of the answer."""
    has_more: bool
    """Whether the search ended before the last line: at its limit, or after 10 minutes."""

    @classmethod
    def of(cls, hits: Hits, *, has_ended: bool = False, is_cut: bool = False) -> Self:
        return cls(
            searched_bytes=hits.num_bytes,
            next_after=hits.next_line,
            has_ended=has_ended,
            has_more=hits.has_more or is_cut,
        )


class SearchRow(WireModel):
    """One row of a search: a hit, its progress, or the error that ended it."""

    hit: LineObject | None = None
    progress: SearchProgress | None = None
    error: ErrorObject | None = None


def _fields(line: FoundLine) -> dict[str, Any]:
    text = shown(line)
    return {
        "number": line.line_no + 1,
        "custom_id": text.custom_id,
        "failed": line.kind.is_error,
        "status_code": line.kind.status_code,
        "code": line.kind.code,
        "size_bytes": line.size,
        "excerpt": text.excerpt,
    }


def _parsed(content: bytes) -> Any:
    """Return JSON parsed, anything else as text, as well as what is nested too deeply to be written again."""
    try:
        parsed = orjson.loads(content)
        orjson.dumps(parsed)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return content.decode(errors="replace")
    return parsed
