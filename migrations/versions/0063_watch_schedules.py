"""Note since when dispatchers look at schedules without a pause, and when a tenant was enabled again."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0063"
down_revision: str | None = "0062"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "schedule_watch",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, server_default="1", nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("schedule_watch_id_check")),
        sa.PrimaryKeyConstraint("id", name="schedule_watch_pkey"),
    )
    op.add_column("tenant", sa.Column("enabled_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("tenant", "enabled_at")
    op.drop_table("schedule_watch")
