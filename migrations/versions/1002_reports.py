"""Keep the statistics of a run's answers, which reports compare with those of earlier runs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "1002"
down_revision: str | None = "1001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("run_step", sa.Column("statistics", postgresql.JSONB(), nullable=True))
    op.create_index("run_pipeline_id_scheduled_for_idx", "run", ["pipeline_id", "scheduled_for"])


def downgrade() -> None:
    op.drop_index("run_pipeline_id_scheduled_for_idx", table_name="run")
    op.drop_column("run_step", "statistics")
