"""Roll up old batches."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "chore",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="chore_pkey"),
    )
    op.add_column("batch", sa.Column("rolled_up_at", sa.DateTime(timezone=True)))
    op.create_index(
        "batch_roll_up_idx", "batch", ["created_at", "id"], postgresql_where=sa.text("rolled_up_at IS NULL")
    )
    op.add_column("ledger", sa.Column("num_entries", sa.BigInteger(), server_default=sa.text("'1'"), nullable=False))


def downgrade() -> None:
    op.drop_column("ledger", "num_entries")
    op.drop_index("batch_roll_up_idx", "batch")
    op.drop_column("batch", "rolled_up_at")
    op.drop_table("chore")
