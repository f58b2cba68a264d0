"""Note of every model which kind of lines it serves: all of them generate so far."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0050"
down_revision: str | None = "0049"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("model", sa.Column("serves", sa.Text(), server_default="generate", nullable=False))


def downgrade() -> None:
    op.drop_column("model", "serves")
