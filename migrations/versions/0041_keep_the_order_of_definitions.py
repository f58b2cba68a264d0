"""Keep the order in which a pipeline's definition was given: that of a schema's properties is the order of answers.

The release before goes on writing what Postgres casts; it loses the order as it did.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0041"
down_revision: str | None = "0040"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for table in ("pipeline", "run"):
        op.alter_column(table, "definition", type_=sa.JSON(), postgresql_using="definition::json")


def downgrade() -> None:
    for table in ("pipeline", "run"):
        op.alter_column(table, "definition", type_=JSONB(), postgresql_using="definition::jsonb")
