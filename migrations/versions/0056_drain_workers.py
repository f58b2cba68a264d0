"""Let operators have a worker claim nothing more."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0056"
down_revision: str | None = "0055"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("draining_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("worker", "draining_at")
