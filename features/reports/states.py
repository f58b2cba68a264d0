"""States of reports that were due."""

from __future__ import annotations

from enum import StrEnum


class MailState(StrEnum):
    """What became of a report's mail."""

    PENDING = "pending"  # to be sent, or to be sent again
    SENT = "sent"  # the server has accepted it
    FAILED = "failed"  # given up; `problem` says why
    NONE = "none"  # nobody is to get one
