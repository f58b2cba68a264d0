"""Makes the schedules due, and waits until the first batch of each run is validated."""

from __future__ import annotations

import time
from datetime import datetime

from sqlalchemy import Engine, text

_LOOK_SECONDS = 2.0
_SHOW_SECONDS = 20.0


def begin(engine: Engine) -> datetime:
    """Reset Postgres' counters, make all schedules due, and return when that was."""
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_stat_statements_reset()"))
    with engine.begin() as connection:
        connection.execute(_MAKE_DUE)
        due_at: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return due_at


def wait(engine: Engine, num_runs: int, *, most_seconds: float) -> None:
    """Wait until every run's batch is validated, and show how far they are. Exits where a run has failed."""
    began = shown_at = time.monotonic()
    while (now := time.monotonic()) - began < most_seconds:
        with engine.connect() as connection:
            at = connection.execute(_PROGRESS).one()
        if at.failed is not None:
            raise SystemExit(f"a run ended without an answer: {at.failed}")
        if at.validated == num_runs:
            return
        if now - shown_at > _SHOW_SECONDS:
            shown_at = now
            print(f"  {now - began:.0f} s: {at.made} made, {at.handed_in} handed in, {at.validated} valid", flush=True)
        time.sleep(_LOOK_SECONDS)
    print(f"given up after {most_seconds:g} s", flush=True)


_MAKE_DUE = text("""
    UPDATE schedule SET next_at = minute, due_at = minute,
        cron = extract(minute FROM minute) || ' ' || extract(hour FROM minute) || ' * * *'
    FROM date_trunc('minute', now() AT TIME ZONE 'UTC') AS local,
        LATERAL (SELECT local AT TIME ZONE 'UTC' AS minute) AS of_utc
""")
_PROGRESS = text("""
    SELECT (SELECT count(*) FROM run) AS made, (SELECT count(*) FROM run_step) AS handed_in,
        (SELECT count(*) FROM batch WHERE state = 'in_progress') AS validated,
        (SELECT min(coalesce(reason, state)) FROM flow WHERE recipe = 'run' AND state NOT IN ('queued', 'running'))
            AS failed
""")
