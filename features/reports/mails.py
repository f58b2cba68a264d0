"""The mails of due reports: claim, record, give up. Each is a short transaction; none is open while one is sent.

A success is recorded whoever holds the claim by then: nobody may send a mail again that the server has accepted. A
failure counts only under the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.tables import Pipeline
from features.reports.states import MailState
from features.reports.tables import DueReport, ReportSubscription
from jobs.claims.claims import Claim, Claims, new_owner
from jobs.claims.statements import ClaimColumns
from jobs.database import transaction
from jobs.purges import Purge
from jobs.settings import Settings
from jobs.storage import Storage

LEASE = timedelta(minutes=30)
"""Longer than a mail takes: five minutes to read its report, and the most that a session with its server lasts."""
TRIED_FOR = timedelta(hours=24)
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)
KEPT_FOR = timedelta(days=90)
"""As runs are by default; a report that was due keeps its day from having a second one."""

MAILS = Claims(
    DueReport,
    [MailState.PENDING],
    columns=ClaimColumns(fence="fence", until="due_at", until_of_free="clock_timestamp()"),
    ends_with_state=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedMail(Claim):
    """A claimed mail."""

    pipeline_id: str
    tenant_id: str
    day: date
    mail_to: Sequence[str]
    include_rows: bool
    is_too_late: bool
    """Whether it has been due for longer than it may be tried."""


def is_any_waiting(session: Session) -> bool:
    """Return whether `claim` would find a mail."""
    return bool(session.scalar(_IS_ANY))


def claim(session: Session) -> ClaimedMail | None:
    """Claim the mail that is due longest of the tenant with the fewest before it; None if none is due."""
    row = session.execute(_CLAIM, {"owner": new_owner(), "lease": LEASE, "tried_for": TRIED_FOR}).one_or_none()
    return None if row is None else ClaimedMail(**row._mapping)


def record_sent(session: Session, mail_id: str, *, refused: str | None) -> bool:
    """Record that the server accepted a mail; `refused` names recipients that it did not. False if it is recorded."""
    return session.execute(_SENT, {"id": mail_id, "problem": refused}).one_or_none() is not None


def record_failure(session: Session, claimed: ClaimedMail, problem: str, *, is_final: bool) -> MailState:
    """Record a failed try: the next one is later, until a day has passed. Raise FencedOutError."""
    values = {"problem": problem, "is_final": is_final, "first": _FIRST_PAUSE, "longest": _LONGEST_PAUSE}
    row = session.execute(_FAILED, {**claimed.guard, **values, "tried_for": TRIED_FOR}).one_or_none()
    if row is None:
        raise MAILS.over(claimed)
    return MailState(row.state)


def purges(maker: sessionmaker[Session], _storage: Storage, _settings: Settings) -> Sequence[Purge]:
    """Return the purge of due reports, for `Feature.purges`."""
    return (Purge(what="due reports", chore="forget due reports", step=lambda: forget(maker)),)


def forget(maker: sessionmaker[Session]) -> int:
    """Delete old reports, and all subscriptions and reports of deleted pipelines; return their number."""
    deleted = select(Pipeline.id).where(Pipeline.deleted_at.is_not(None))
    # A disabled tenant's mails wait, and nobody gives them up.
    is_old = func.coalesce(DueReport.ended_at, DueReport.created_at) < func.now() - KEPT_FOR
    with transaction(maker) as session:
        of_reports = delete(DueReport).where(is_old | DueReport.pipeline_id.in_(deleted))
        of_subscriptions = delete(ReportSubscription).where(ReportSubscription.pipeline_id.in_(deleted))
        reports = session.scalars(of_reports.returning(DueReport.id)).all()
        return len(reports) + len(session.scalars(of_subscriptions.returning(ReportSubscription.pipeline_id)).all())


_DUE = f"""
    FROM due_report JOIN pipeline ON pipeline.id = due_report.pipeline_id
    JOIN tenant ON tenant.id = due_report.tenant_id
    WHERE due_report.state = 'pending' AND {MAILS.sql.is_over}
        AND pipeline.deleted_at IS NULL AND tenant.deleted_at IS NULL AND tenant.disabled_at IS NULL
"""
_IS_ANY = text(f"SELECT EXISTS (SELECT {_DUE})")

# The first mail of each tenant before the second of any.
_CLAIM = text(f"""
    WITH due AS (
        SELECT due_report.id, due_report.due_at,
            row_number() OVER (PARTITION BY due_report.tenant_id ORDER BY due_report.due_at, due_report.id) AS turn
        {_DUE}
    ), mine AS (
        SELECT due_report.id FROM due_report JOIN due ON due.id = due_report.id
        WHERE due_report.state = 'pending' AND {MAILS.sql.is_over}
        ORDER BY due.turn, due.due_at LIMIT 1 FOR NO KEY UPDATE OF due_report SKIP LOCKED
    )
    UPDATE due_report SET {MAILS.sql.taken} FROM mine WHERE due_report.id = mine.id
    RETURNING due_report.id, state, claimed_by AS owner, fence, pipeline_id, tenant_id, day, mail_to, include_rows,
        created_at < now() - CAST(:tried_for AS interval) AS is_too_late
""")

_SENT = text("""
    UPDATE due_report SET state = 'sent', num_tries = num_tries + 1, ended_at = now(), problem = :problem
    WHERE id = :id AND state = 'pending' RETURNING id
""")

# 1, 2, 4 … 60 minutes after each other; the last try is within the day.
_FAILED = text(f"""
    WITH pause AS (
        SELECT id, least(CAST(:first AS interval) * power(2, least(num_tries, 10)), CAST(:longest AS interval)) AS next
        FROM due_report WHERE id = :id
    )
    UPDATE due_report SET num_tries = num_tries + 1, problem = :problem, claimed_by = NULL,
        due_at = clock_timestamp() + pause.next,
        state = CASE WHEN :is_final OR clock_timestamp() + pause.next > created_at + CAST(:tried_for AS interval)
            THEN 'failed' ELSE 'pending' END,
        ended_at = CASE WHEN :is_final OR clock_timestamp() + pause.next > created_at + CAST(:tried_for AS interval)
            THEN now() END
    FROM pause WHERE pause.id = due_report.id AND {MAILS.sql.is_held}
    RETURNING state
""")
