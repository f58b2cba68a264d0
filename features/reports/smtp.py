"""Sends a mail to the operator's SMTP server: over TLS, except to a server on this machine."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import EmailMessage

from features.reports.settings import ReportSettings
from jobs.errors import ServiceError

SECONDS = 30.0
"""Timeout of each step of a session with the server."""
_TLS_PORT = 465
_PERMANENT = 500


class MailRefusedError(Exception):
    """The server refused a mail for good: another try changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpServer:
    """The server of mails."""

    settings: ReportSettings
    tls: ssl.SSLContext | None = None
    """None: the system's trust store."""

    def send(self, mail: EmailMessage) -> str | None:
        """Send a mail; return which recipients the server refused, None if it accepted all.

        Raise MailRefusedError, or ServiceError if a later try may succeed.
        """
        try:
            with self._session() as session:
                refused = session.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            raise _refused_all(error.recipients) from error
        except (smtplib.SMTPSenderRefused, smtplib.SMTPDataError) as error:
            problem = _answer(error.smtp_code, error.smtp_error)
            raise (MailRefusedError if error.smtp_code >= _PERMANENT else ServiceError)(problem) from error
        except (smtplib.SMTPException, OSError) as error:
            raise ServiceError(f"{type(error).__name__}: {error}"[:500]) from error
        return _listed(refused) if refused else None

    @contextmanager
    def _session(self) -> Iterator[smtplib.SMTP]:
        (host, port), tls = self.settings.mail_address, self.tls or ssl.create_default_context()
        if port == _TLS_PORT:
            session: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=SECONDS, context=tls)
        else:
            session = smtplib.SMTP(host, port, timeout=SECONDS)
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
    return (MailRefusedError if is_permanent else ServiceError)(_listed(recipients))


def _listed(recipients: Mapping[str, tuple[int, bytes]]) -> str:
    return "; ".join(f"{address}: {_answer(*answer)}" for address, answer in recipients.items())[:500]


def _answer(code: int, text: bytes | str) -> str:
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return f"{code} {' '.join(words.split())}"[:500].replace("\x00", "\ufffd")
