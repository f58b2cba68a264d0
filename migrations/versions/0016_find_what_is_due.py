"""Find what is due without a look at what is not."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Generated, so that it is right whichever release writes the counters; the table is written anew once.
    op.add_column(
        "batch",
        sa.Column(
            "is_answered",
            sa.Boolean(),
            sa.Computed("num_completed + num_failed >= num_requests", persisted=True),
            nullable=False,
        ),
    )
    op.create_index(
        "batch_answered_idx", "batch", ["id"], postgresql_where=sa.text("state = 'in_progress' AND is_answered")
    )
    op.create_index(
        "batch_expiry_idx",
        "batch",
        ["expires_at", "id"],
        postgresql_where=sa.text("state IN ('validating','in_progress')"),
    )
    op.create_index("worker_live_idx", "worker", ["model"], postgresql_where=sa.text("stopped_at IS NULL"))
    op.create_table(
        "queue_count",
        sa.Column("id", sa.SmallInteger(), server_default=sa.text("'1'"), autoincrement=False, nullable=False),
        sa.Column("numbers", postgresql.JSONB(), nullable=False),
        sa.Column("counted_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("queue_count_id_check")),
        sa.PrimaryKeyConstraint("id", name="queue_count_pkey"),
    )


def downgrade() -> None:
    op.drop_table("queue_count")
    op.drop_index("worker_live_idx", "worker")
    op.drop_index("batch_expiry_idx", "batch")
    op.drop_index("batch_answered_idx", "batch")
    op.drop_column("batch", "is_answered")
