"""Upgrade a database from before the baseline, at 0061 to 0069, to the baseline in place.

Each step is an SQL file and a transaction that ends by setting its name as the revision: an interrupted upgrade
continues with the first missing step. Earlier releases are not ready on the database from the first step on.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text

from jobs.errors import ServiceError

BASELINE = "1000"
FIRST, LAST = "0061", "0069"
"""First and last revision that can be upgraded."""
_FLOWS = "0069.3-flows"
STEPS = ("0062", "0063", "0064", "0065", "0066", "0068", "0069", "0069.1-filled", "0069.2-billed", _FLOWS, BASELINE)
"""In order, which is also the order of their names; those before 0069 repeat the earlier releases' migrations."""

_FOLDER = Path(__file__).parent
_OF_BASELINE = _FOLDER.with_name("baseline")
_WAIT_FOR_OTHERS = "120s"
_LOCK_TIMEOUT = "5s"


def begins_at(revision: str) -> bool:
    """Return whether the bridge upgrades a database at this revision: an old one, or an interrupted upgrade."""
    is_of_before = revision.isdecimal() and len(revision) == len(LAST) and FIRST <= revision <= LAST
    return is_of_before or revision in STEPS[:-1]


def cross(connection: Connection) -> None:
    """Run the remaining steps. Raises ServiceError, before any change, where the database cannot be upgraded."""
    with connection.begin():
        _lock(connection)
        _require_named_stages(connection)
        connection.execute(text("UPDATE schema_floor SET revision = greatest(revision, :own)"), {"own": BASELINE})
    for step in STEPS:
        with connection.begin():
            _take(connection, step)


def _lock(connection: Connection) -> None:
    """Lock out other migrations until the transaction ends."""
    connection.execute(text(f"SET LOCAL lock_timeout = '{_WAIT_FOR_OTHERS}'"))
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtextextended('migrations', 0))"))
    connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))


def _take(connection: Connection, step: str) -> None:
    _lock(connection)
    if connection.execute(_REVISION).scalar_one() >= step:
        return
    connection.execute(text(_sql(step)))
    connection.execute(text("UPDATE alembic_version SET version_num = :step"), {"step": step})


def _sql(step: str) -> str:
    own = (_FOLDER / f"{step}.sql").read_text(encoding="utf-8")
    if step == _FLOWS:
        return (_OF_BASELINE / "flows.sql").read_text(encoding="utf-8") + own
    return own if step != BASELINE else own + (_OF_BASELINE / "result_days.sql").read_text(encoding="utf-8")


def _require_named_stages(connection: Connection) -> None:
    if connection.execute(_REVISION).scalar_one() >= _FLOWS:
        return
    unnamed = connection.execute(_UNNAMED).scalars().all()
    if unnamed:
        raise ServiceError(
            f"{', '.join(unnamed)} began under a release that asked in no rounds: let the release that runs on this "
            "database end these extractions, or cancel them there, and upgrade then."
        )


_REVISION = text("SELECT version_num FROM alembic_version")
# After the first steps all are named.
_UNNAMED = text("""
    SELECT DISTINCT extraction.id FROM extraction JOIN extraction_stage ON extraction_id = extraction.id
    WHERE extraction_stage.name IS NULL AND state IN ('in_progress', 'cancelling')
""")
