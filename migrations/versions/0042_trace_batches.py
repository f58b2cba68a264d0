"""Trace batches. The release before writes none, and its batches have no trace."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0042"
down_revision: str | None = "0041"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("trace_context", sa.Text()))


def downgrade() -> None:
    op.drop_column("batch", "trace_context")
