"""What ends with a tenant: its subscriptions and due reports. Every role imports this file, so it needs few others."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from features.reports.tables import DueReport, ReportSubscription


def delete_all_of(session: Session, tenant_id: str) -> None:
    """Delete the subscriptions and due reports of a tenant that ends."""
    session.execute(delete(DueReport).where(DueReport.tenant_id == tenant_id))
    session.execute(delete(ReportSubscription).where(ReportSubscription.tenant_id == tenant_id))
