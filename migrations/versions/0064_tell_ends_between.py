"""Keep the interval of each forecast, and what it is made of: lines that were computed, and those that run."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0064"
down_revision: str | None = "0063"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("running_lines", postgresql.JSONB()))
    op.add_column("batch", sa.Column("num_computed", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("forecast", sa.Column("earliest_seconds", sa.Float()))
    op.add_column("forecast", sa.Column("latest_seconds", sa.Float()))
    op.add_column("forecast", sa.Column("told", postgresql.JSONB()))


def downgrade() -> None:
    op.drop_column("forecast", "told")
    op.drop_column("forecast", "latest_seconds")
    op.drop_column("forecast", "earliest_seconds")
    op.drop_column("batch", "num_computed")
    op.drop_column("worker", "running_lines")
