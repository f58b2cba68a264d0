"""Cap urgent work."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("tenant", sa.Column("max_urgent_tokens", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("tenant", "max_urgent_tokens")
