"""Fixtures of tests of reports' mails: a real SMTP server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.features.reports.mail_server import Inbox, mail_server


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with mail_server() as inbox:
        yield inbox
