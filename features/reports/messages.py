"""The mail of a report: plain text with counts and links, and texts of failed rows only where they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from features.reports.addresses import domain_of
from features.reports.texts import title, whole
from jobs.batches.ordered_results import MAX_LINE_BYTES
from jobs.lines.reading import iter_lines
from jobs.storage import Storage

_SHOWN_ROWS = 5
_ROW_CHARACTERS = 300


def message(
    report: Mapping[str, Any],
    *,
    mail_id: str,
    sender: str,
    recipients: Sequence[str],
    site: str,
    failed_rows: Sequence[str],
    at: datetime,
) -> EmailMessage:
    """Return the mail of a report; `failed_rows` are texts of rows, empty where they are not asked for."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender, ", ".join(recipients), title(report)
    mail["Date"] = format_datetime(at)
    # The same for each try, so that servers can drop one that was sent twice.
    mail["Message-ID"] = f"<{mail_id}@{domain_of(sender)}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answers from those who are away
    mail.set_content("\n".join(_body(report, site, failed_rows)) + "\n")
    return mail


def failed_row_texts(storage: Storage, key: str) -> list[str]:
    """Return the first rows of a step's file of failed rows, cut. Raise NotFoundError if the store has lost it."""
    first = itertools.islice(iter_lines(storage.iter_chunks(key), max_line_bytes=MAX_LINE_BYTES), _SHOWN_ROWS)
    return [(line.content or b"").decode(errors="replace")[:_ROW_CHARACTERS] for line in first]


def _body(report: Mapping[str, Any], site: str, failed_rows: Sequence[str]) -> Iterator[str]:
    yield from whole(report, site=site)
    if failed_rows:
        yield ""
        yield "Failed rows:"
        yield from failed_rows
