"""Find the batches of a run, however many its tenant has made since."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0045"
down_revision: str | None = "0044"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("batch_run_idx", "batch", ["run_id"], postgresql_where=sa.text("run_id IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("batch_run_idx", "batch")
