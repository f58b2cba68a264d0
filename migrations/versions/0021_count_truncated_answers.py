"""Count truncated answers."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("num_truncated", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("batch", "num_truncated")
