"""Tell of late runs. The release before makes no schedule that wants it, and marks no run."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0038"
down_revision: str | None = "0037"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("schedule", sa.Column("late_after_seconds", sa.Integer()))
    op.add_column("run", sa.Column("late_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("run", "late_at")
    op.drop_column("schedule", "late_after_seconds")
