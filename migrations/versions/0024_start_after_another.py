"""Start after another."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("after_batch_id", sa.Text()))
    op.create_index(
        "batch_after_idx",
        "batch",
        ["after_batch_id"],
        postgresql_where=sa.text("state = 'validating' AND after_batch_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("batch_after_idx", "batch")
    op.drop_column("batch", "after_batch_id")
