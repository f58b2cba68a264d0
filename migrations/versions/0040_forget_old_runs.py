"""Forget old runs. The release before reads no run of a file that it took."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0040"
down_revision: str | None = "0039"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.alter_column("dataset_file", "run_id", nullable=True)
    op.create_index("run_ended_idx", "run", ["ended_at"], postgresql_where=sa.text("ended_at IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("run_ended_idx", table_name="run")
    op.execute("DELETE FROM dataset_file WHERE run_id IS NULL")
    op.alter_column("dataset_file", "run_id", nullable=False)
