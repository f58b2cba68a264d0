"""Note the run that made a batch. Those that the release before makes are found by their run's steps."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0043"
down_revision: str | None = "0042"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("run_id", sa.Text()))


def downgrade() -> None:
    op.drop_column("batch", "run_id")
