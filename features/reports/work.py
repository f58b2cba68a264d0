"""Makes the reports that are due, and sends their mails: one thread of a control worker, one mail at a time."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from sqlalchemy.orm import Session, sessionmaker

from features.reports import mails, subscriptions
from features.reports.mails import ClaimedMail
from features.reports.messages import failed_row_texts, message
from features.reports.reading import read_report
from features.reports.report import Report
from features.reports.schemas import ReportObject
from features.reports.settings import ReportSettings
from features.reports.smtp import MailRefusedError, RecipientsDelayedError, ServerRefusedError, SmtpServer
from jobs import files
from jobs.database import transaction
from jobs.errors import FencedOutError, InputError, NotFoundError, ServiceError
from jobs.storage import Storage
from workers.control_work import ControlParts, ControlWork

log = logging.getLogger(__name__)

CONNECTIONS = 1
"""Postgres connections: one transaction at a time."""
_LOOK_SECONDS = 20.0
_RETRY_SECONDS = 1.0
_DRAIN_SECONDS = 20.0  # at a stop, for the mail in progress
# What a tenant is told; the log has what the operator's server, database or settings said.
_AWAY = "the mail server cannot be used now"
_REFUSED = "the mail server refused the mail"


class Mailer:
    """Owns the thread."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        *,
        settings: ReportSettings,
        server: SmtpServer | None = None,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._sessions = sessions
        self._storage = storage
        self._settings = settings
        self._server = server or SmtpServer(settings=settings)
        self._look_seconds = look_seconds
        self._accepted: dict[str, str | None] = {}
        """Refused recipients of mails that the server has accepted and that could not be recorded, by id."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def wake(self) -> None:
        """Do nothing: reports are due by the clock, not when a batch ends."""

    def stop(self) -> None:
        """Make and send no more, and wait for the mail in progress."""
        self._stop.set()
        self._thread.join(timeout=_DRAIN_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.act()
            except ServiceError as error:
                log.warning("looking for reports failed error=%s", error)
            except Exception:
                log.exception("looking for reports failed")  # the thread must survive
            self._stop.wait(self._look_seconds * random.uniform(0.5, 1.0))

    def act(self) -> None:
        """Make all reports that are due now, and send all mails."""
        for mail_id in list(self._accepted):
            self._record_sent(mail_id)
        while not self._stop.is_set() and self._is_any(subscriptions.is_any_due):
            with transaction(self._sessions) as session:
                if not subscriptions.make_due(session, self._settings):
                    break  # another worker makes them
        while not self._stop.is_set() and self._settings.allowed_domains and self._is_any(mails.is_any_waiting):
            with transaction(self._sessions) as session:
                claimed = mails.claim(session)
            if claimed is None:
                break
            self._deliver(claimed)

    def _is_any(self, question: Callable[[Session], bool]) -> bool:
        with transaction(self._sessions) as session:
            return question(session)

    def _deliver(self, claimed: ClaimedMail) -> None:
        """Send a claimed mail and record what became of it."""
        if claimed.id in self._accepted:
            self._record_sent(claimed.id)
            return
        try:
            self._accepted[claimed.id] = self._send(claimed)
        except ServerRefusedError as error:
            log.warning("mail server refused a mail mail_id=%s answer=%s", claimed.id, error)
            self._record_failure(claimed, _REFUSED, is_final=True)
        except (MailRefusedError, InputError) as error:
            self._record_failure(claimed, str(error), is_final=True)
        except RecipientsDelayedError as error:
            self._record_failure(claimed, str(error), is_final=False)
        except FencedOutError:
            log.info("report mail taken by another worker mail_id=%s", claimed.id)
        except Exception as error:
            if isinstance(error, ServiceError):
                log.warning("report mail failed mail_id=%s error=%s", claimed.id, error)
            else:
                log.exception("report mail failed mail_id=%s", claimed.id)
            self._record_failure(claimed, _AWAY, is_final=False)
        else:
            self._record_sent(claimed.id)

    def _send(self, claimed: ClaimedMail) -> str | None:
        """Send a mail; return which recipients were refused. Raise as `SmtpServer.send`, and FencedOutError."""
        if claimed.is_too_late:
            raise MailRefusedError("it could not be sent within a day")
        recipients = [address for address in claimed.mail_to if subscriptions.is_allowed(address, self._settings)]
        if not recipients:
            raise MailRefusedError("no recipient is in a domain that the operator allows")
        with transaction(self._sessions) as session:
            report = read_report(session, claimed.tenant_id, claimed.pipeline_id, claimed.day)
        mail = message(
            ReportObject.of(report, currency=self._settings.currency).model_dump(mode="json"),
            mail_id=claimed.id,
            sender=self._settings.mail_from,
            recipients=recipients,
            site=self._settings.mail_site,
            failed_rows=self._failed_rows(claimed, report) if claimed.include_rows else (),
            at=datetime.now(UTC),
        )
        with transaction(self._sessions) as session:
            mails.MAILS.confirm(session, claimed)  # reading took a while
        return self._server.send(mail, recipients)

    def _failed_rows(self, claimed: ClaimedMail, report: Report) -> Sequence[str]:
        """Return texts of failed rows; none if their file was deleted."""
        file_ids = [step.failed_rows_file_id for step in report.failed_steps if step.failed_rows_file_id is not None]
        if not file_ids:
            return ()
        with transaction(self._sessions) as session:
            file = files.find_kept(session, claimed.tenant_id, file_ids[0])
        if file is None:
            return ()
        try:
            return failed_row_texts(self._storage, file.object_key)
        except NotFoundError:
            return ()

    def _record_sent(self, mail_id: str) -> None:
        """Record that the server accepted a mail, as soon as the database answers.

        At a stop or another error the mail stays noted, and nothing is sent at its next claim by this process.
        """
        while True:
            try:
                with transaction(self._sessions) as session:
                    mails.record_sent(session, mail_id, refused=self._accepted[mail_id])
            except ServiceError as error:
                log.warning("report mail was not recorded mail_id=%s error=%s", mail_id, error)
                if self._stop.wait(_RETRY_SECONDS):
                    return
            else:
                del self._accepted[mail_id]
                log.info("report mail sent mail_id=%s", mail_id)
                return

    def _record_failure(self, claimed: ClaimedMail, problem: str, *, is_final: bool) -> None:
        try:
            with transaction(self._sessions) as session:
                state = mails.record_failure(session, claimed, problem[:500], is_final=is_final)
        except (FencedOutError, ServiceError) as error:  # its claim expires by itself
            log.warning("report mail was not recorded mail_id=%s error=%s", claimed.id, error)
        else:
            log.warning("report mail failed mail_id=%s state=%s problem=%s", claimed.id, state, problem)


def _mailer(parts: ControlParts) -> Mailer:
    return Mailer(parts.sessions, parts.storage, settings=parts.settings.of(ReportSettings))


WORK = ControlWork(connections=CONNECTIONS, make=_mailer)
