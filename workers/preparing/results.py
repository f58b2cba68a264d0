"""Results of a chunk's lines: made of bodies and errors, held a moment, written together. Knows no reader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from jobs.chunks.recording import LineResult
from jobs.errors import InputError, ServiceError
from jobs.lines.output_lines import error_line, output_line
from jobs.lines.responses import error_body
from jobs.settings import Settings
from workers.chunks.lease import ChunkLease
from workers.preparing.lines import Ended

log = logging.getLogger(__name__)

REFUSED = 422
"""The status of a document that was not read, or an answer that was not grounded: its bytes are the reason."""


def answered(batch_id: str, line_no: int, custom_id: str, body: Mapping[str, Any]) -> LineResult:
    """Return the result of a line that has its answer."""
    content = output_line(batch_id, line_no, custom_id, status_code=200, body=body)
    return LineResult(line_no=line_no, status_code=200, line=content)


def refused(batch_id: str, line_no: int, custom_id: str | None, error: InputError) -> LineResult:
    """Return the result of a line that has none, with the page where the error is about one."""
    body = error_body(error.message, code=error.code, param=error.param)
    body["error"]["page"] = getattr(error, "page", None)
    content = output_line(batch_id, line_no, custom_id, status_code=REFUSED, body=body)
    return LineResult(line_no=line_no, status_code=REFUSED, line=content)


def fault(batch_id: str, line_no: int, custom_id: str | None, error: Exception) -> LineResult:
    """Return the result of a line that a fault of ours has ended."""
    log.error("line failed unexpectedly batch_id=%s line_no=%s", batch_id, line_no, exc_info=error)
    message = (
        f"An internal error, {type(error).__name__}, ended this line; the worker's log has it under batch {batch_id} "
        f"line_no {line_no}. Report it to who runs this service."
    )
    content = error_line(batch_id, line_no, custom_id, code="worker_failure", message=message)
    return LineResult(line_no=line_no, status_code=None, line=content)


class DocumentResults:
    """`len()` is how many results are not yet written."""

    are_large = False  # they are made before they come here

    def __init__(self, lease: ChunkLease, settings: Settings, *, monotonic: Callable[[], float]) -> None:
        self._lease = lease
        self._settings = settings
        self._monotonic = monotonic
        self._unwritten: list[LineResult] = []
        self._first_at = 0.0  # when the first of them came
        self.num_ended = 0
        self.reading_microseconds = 0
        """Of all that have ended."""
        self.away: ServiceError | None = None
        """Why a line could not be answered just now."""

    def __len__(self) -> int:
        return len(self._unwritten)

    def finish(self, ended: Ended) -> None:
        """Note what became of a line."""
        if isinstance(ended, ServiceError):
            self.away = ended
            return
        self.num_ended += 1
        self.reading_microseconds += ended.reading_microseconds
        if not self._unwritten:
            self._first_at = self._monotonic()
        self._unwritten.append(ended)

    @property
    def is_due(self) -> bool:
        """Tell whether to write now: there are many, or the first is old."""
        is_old = self._monotonic() - self._first_at >= self._settings.flush_seconds
        return bool(self._unwritten) and (is_old or len(self._unwritten) >= self._settings.flush_results)

    def write(self, *, is_last: bool = False) -> None:
        """Write what is finished, which also extends the lease, or ends it where it `is_last`. Raises Abandoned."""
        self._lease.flush(self._unwritten, most_running=0, most_picos=0, is_last=is_last)
        self._unwritten = []
