"""Offer models that were checked. Those that are there stay offered: batches may be waiting to be validated."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0033"
down_revision: str | None = "0032"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("model", sa.Column("checked_at", sa.DateTime(timezone=True)))
    op.execute("UPDATE model SET checked_at = created_at")


def downgrade() -> None:
    op.drop_column("model", "checked_at")
