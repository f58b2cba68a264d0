"""How a migration takes something away: it says which code no longer runs on what is left.

Expanding ones need nothing of this. `jobs.database.is_ready` reads it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def require_code(revision: str) -> None:
    """Let only code that knows `revision` or a later one be ready on this schema: what older code uses is gone."""
    op.execute(sa.text("UPDATE schema_floor SET revision = greatest(revision, :own)").bindparams(own=revision))
