"""The rest of a flow's time for its next batch."""

from __future__ import annotations

import math
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.call_limits import MAX_WINDOW


def window_left(session: Session, expires_at: datetime, *, least_minutes: int = 1) -> str:
    """Return the window, in minutes, of a batch that should end by then: at least `least_minutes`."""
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None
    left = math.ceil((expires_at - now).total_seconds() / 60)
    return f"{min(max(least_minutes, left), int(MAX_WINDOW.total_seconds() // 60))}m"
