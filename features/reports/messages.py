"""The mail of a report: plain text with counts and links, and texts of failed rows only where they are asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from features.pipelines.step_rows import read_rows
from features.reports.texts import title, whole
from jobs.storage import Storage
from tokenmill.row_json import dumps

_SHOWN_ROWS = 5
_ROW_CHARACTERS = 300
_MOST_READ = 100_000
"""Rows of a file that are read to find those that failed."""


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
    mail["Message-ID"] = f"<{mail_id}@{sender.rpartition('@')[2] or 'localhost'}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answers from those who are away
    mail.set_content("\n".join(_body(report, site, failed_rows)) + "\n")
    return mail


def failed_row_texts(storage: Storage, rows_key: str, failed_ids: Sequence[str]) -> list[str]:
    """Return the first failed rows of a step as JSON, cut. Raise NotFoundError if the store has lost them."""
    wanted = set(failed_ids[:_SHOWN_ROWS])
    found: list[str] = []
    for row in itertools.islice(read_rows(storage, rows_key), _MOST_READ):
        if row.custom_id in wanted:
            found.append(f"{row.custom_id}: {dumps(dict(row.values)).decode()[:_ROW_CHARACTERS]}")
        if len(found) == len(wanted):
            break
    return found


def _body(report: Mapping[str, Any], site: str, failed_rows: Sequence[str]) -> Iterator[str]:
    yield from whole(report, site=site)
    if failed_rows:
        yield ""
        yield "Failed rows:"
        yield from failed_rows
