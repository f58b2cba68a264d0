"""Keep the unfinished output of lines that a draining worker gives back."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "checkpoint",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("token_ids", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("checkpoint_batch_id_fkey")),
        sa.PrimaryKeyConstraint("batch_id", "line_no", name=op.f("checkpoint_pkey")),
    )


def downgrade() -> None:
    op.drop_table("checkpoint")
