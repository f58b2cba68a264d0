"""Contracting migrations: record which code no longer runs after they remove something.

Expanding ones do not need this. `jobs.database.is_ready` reads it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def require_code(revision: str) -> None:
    """Require code that knows `revision` or a later one on this schema: what older code uses is gone."""
    op.execute(sa.text("UPDATE schema_floor SET revision = greatest(revision, :own)").bindparams(own=revision))
