"""Count the time for which readers of documents work, by batch and by entry of the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0065"
down_revision: str | None = "0064"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    for table in ("batch", "ledger"):
        op.add_column(table, sa.Column("reading_microseconds", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    for table in ("ledger", "batch"):
        op.drop_column(table, "reading_microseconds")
