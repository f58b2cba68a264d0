"""Tests of sending a mail: over TLS with a password unless the server is on this machine, and how a session ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path

import pytest

from features.reports import mails, smtp
from features.reports.settings import ReportSettings
from features.reports.smtp import MailRefusedError, SmtpServer
from jobs.errors import ServiceError
from tests.all_settings import Settings
from tests.features.reports.mail_server import PASSWORD, Inbox, certificate, mail_server, settings_of

ANNA, BOB = "anna@example.com", "bob@example.com"


class NotLocal(Settings):
    """Settings of a server that is elsewhere."""

    @property
    def is_mail_local(self) -> bool:
        return False


@pytest.fixture
def write() -> Callable[[], EmailMessage]:
    def write() -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"], mail["Subject"] = "mill@example.com", ANNA, "a report"
        mail.set_content("text")
        return mail

    return write


def test_mails_leave_this_machine_only_over_tls_with_the_password_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[], EmailMessage]
) -> None:
    served, trusted = certificate(tmp_path)
    monkeypatch.setenv("MAIL_SECRET", PASSWORD)
    values = {"mail_from": "mill@example.com", "mail_user": "reports", "mail_password": "env:MAIL_SECRET"}
    with mail_server(tls=served, needs_login=True) as inbox:
        settings = NotLocal(mail_server=inbox.address, **values)  # type: ignore[arg-type]
        assert SmtpServer(settings=settings, tls=trusted).send(write(), [ANNA]) is None
        assert inbox.over_tls == [True]
        with pytest.raises(ServiceError):
            SmtpServer(settings=settings).send(write(), [ANNA])  # the system does not trust the certificate
        monkeypatch.setenv("MAIL_SECRET", "wrong")
        with pytest.raises(ServiceError):
            SmtpServer(settings=settings, tls=trusted).send(write(), [ANNA])
        monkeypatch.delenv("MAIL_SECRET")
        with pytest.raises(ServiceError):
            SmtpServer(settings=settings, tls=trusted).send(write(), [ANNA])
        assert len(inbox.mails) == 1


def test_a_server_elsewhere_that_has_no_tls_gets_nothing(inbox: Inbox, write: Callable[[], EmailMessage]) -> None:
    settings = NotLocal(mail_server=inbox.address, mail_from="mill@example.com")
    with pytest.raises(ServiceError):
        SmtpServer(settings=settings).send(write(), [ANNA])
    assert inbox.mails == []


@pytest.mark.parametrize(
    ("server", "is_local"),
    [
        ("127.0.0.1:25", True), ("localhost:25", True), ("[::1]:25", True), ("127.0.0.1.example.com:25", False),
        ("10.0.0.1:25", False), ("smtp.example.com:587", False),
    ],
)  # fmt: skip
def test_only_a_loopback_server_is_on_this_machine(server: str, is_local: bool) -> None:
    assert ReportSettings(mail_server=server).is_mail_local is is_local


def test_a_server_that_takes_its_time_over_a_content_is_waited_for(
    inbox: Inbox, write: Callable[[], EmailMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("features.reports.smtp.SECONDS", 0.5)
    inbox.holds_seconds = 1.0
    assert SmtpServer(settings=settings_of(inbox)).send(write(), [ANNA]) is None
    assert len(inbox.mails) == 1


def test_a_session_has_an_end_before_that_of_its_claim(
    inbox: Inbox, write: Callable[[], EmailMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert smtp.CONTENT_SECONDS >= 600
    assert timedelta(seconds=smtp.CONTENT_SECONDS) < timedelta(seconds=smtp.SESSION_SECONDS) < mails.LEASE
    monkeypatch.setattr("features.reports.smtp.SESSION_SECONDS", 0.5)
    inbox.holds_seconds = 30.0
    with pytest.raises(ServiceError):
        SmtpServer(settings=settings_of(inbox)).send(write(), [ANNA])


def test_only_the_given_recipients_get_a_mail(inbox: Inbox, write: Callable[[], EmailMessage]) -> None:
    SmtpServer(settings=settings_of(inbox)).send(write(), [BOB])
    assert [recipients for recipients, _ in inbox.mails] == [[BOB]]


@pytest.mark.parametrize(("answer", "error"), [("451 later", ServiceError), ("554 spam", MailRefusedError)])
def test_a_permanent_answer_ends_the_tries(
    inbox: Inbox, write: Callable[[], EmailMessage], answer: str, error: type[Exception]
) -> None:
    inbox.answers = [answer]
    settings = Settings(mail_server=inbox.address, mail_from="mill@example.com")
    with pytest.raises(error, match=answer):
        SmtpServer(settings=settings).send(write(), [ANNA])
