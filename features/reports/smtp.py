"""Sends a mail to the operator's SMTP server: over TLS, except to a server on this machine."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Any

from features.reports.settings import ReportSettings
from jobs.errors import ServiceError

SECONDS = 30.0
"""Timeout of each step of a session with the server."""
CONTENT_SECONDS = 600.0
"""Timeout of the steps of a mail's content. RFC 5321 asks for as much after its end: who gives up sends it twice."""
SESSION_SECONDS = 1500.0
"""Most that a session lasts, even where each step is within its timeout; a claim lasts longer."""
_TLS_PORT = 465
_PERMANENT = 500


class MailRefusedError(Exception):
    """A mail is refused for good: another try changes nothing."""


class ServerRefusedError(MailRefusedError):
    """The server refused the sender or the content for good. Its answer is for the operator."""


class RecipientsDelayedError(ServiceError):
    """The server refused all recipients for now."""


class _Session(smtplib.SMTP):
    """A session of a bounded time, which waits longer for what the server says to a mail's content."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._timer = threading.Timer(SESSION_SECONDS, self._cut_off)
        self._timer.daemon = True
        self._timer.start()
        try:
            super().__init__(*args, **options)
        except BaseException:
            self._timer.cancel()
            raise

    def data(self, msg: Any) -> tuple[int, bytes]:
        self._wait_for(CONTENT_SECONDS)
        try:
            return super().data(msg)
        finally:
            self._wait_for(SECONDS)

    def close(self) -> None:
        self._timer.cancel()
        super().close()

    def _wait_for(self, seconds: float) -> None:
        if self.sock is not None:  # it was closed
            self.sock.settimeout(seconds)

    def _cut_off(self) -> None:
        """Have all further steps fail; the session's thread closes it."""
        if self.sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class _TlsSession(_Session, smtplib.SMTP_SSL):
    """The same over TLS from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpServer:
    """The server of mails."""

    settings: ReportSettings
    tls: ssl.SSLContext | None = None
    """None: the system's trust store."""

    def send(self, mail: EmailMessage, recipients: Sequence[str]) -> str | None:
        """Send a mail; return which recipients the server refused, None if it accepted all.

        Raise MailRefusedError, or ServiceError if a later try may succeed.
        """
        try:
            with self._session() as session:
                refused = session.send_message(mail, self.settings.mail_from, recipients)
        except smtplib.SMTPRecipientsRefused as error:
            raise _refused_all(error.recipients) from error
        except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
            problem = _answer(error.smtp_code, error.smtp_error)
            raise (ServerRefusedError if error.smtp_code >= _PERMANENT else ServiceError)(problem) from error
        except (smtplib.SMTPException, OSError) as error:
            raise ServiceError(f"{type(error).__name__}: {error}"[:500]) from error
        return _listed(refused) if refused else None

    @contextmanager
    def _session(self) -> Iterator[smtplib.SMTP]:
        (host, port), tls = self.settings.mail_address, self.tls or ssl.create_default_context()
        if port == _TLS_PORT:
            session: smtplib.SMTP = _TlsSession(host, port, timeout=SECONDS, context=tls)
        else:
            session = _Session(host, port, timeout=SECONDS)
        try:
            session.ehlo()
            if port != _TLS_PORT and not self.settings.is_mail_local:
                session.starttls(context=tls)  # raises where the server has none
                session.ehlo()
            if self.settings.mail_user:
                session.login(self.settings.mail_user, self.settings.read_mail_password())
            yield session
        finally:
            _leave(session)


def _leave(session: smtplib.SMTP) -> None:
    """End a session. What the server says to that is no matter: it has accepted the mail, or not, before."""
    try:
        session.quit()
    except (smtplib.SMTPException, OSError):
        session.close()


def _refused_all(recipients: Mapping[str, tuple[int, bytes]]) -> Exception:
    is_permanent = all(code >= _PERMANENT for code, _ in recipients.values())
    return (MailRefusedError if is_permanent else RecipientsDelayedError)(_listed(recipients))


def _listed(recipients: Mapping[str, tuple[int, bytes]]) -> str:
    return "; ".join(f"{address}: {_answer(*answer)}" for address, answer in recipients.items())[:500]


def _answer(code: int, text: bytes | str) -> str:
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return f"{code} {' '.join(words.split())}"[:500].replace("\x00", "\ufffd")
