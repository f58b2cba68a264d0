"""Count the time for which readers of documents work, with its price, and the most that a tenant may have in a day."""

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
    op.add_column("ledger", sa.Column("reading_price_micros", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("batch", sa.Column("reading_limit_seconds", sa.BigInteger()))
    op.add_column("tenant", sa.Column("max_reading_seconds_per_day", sa.BigInteger()))
    op.add_column("budget", sa.Column("reading_day", sa.Date()))
    op.add_column("budget", sa.Column("reading_microseconds", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("budget", "reading_microseconds")
    op.drop_column("budget", "reading_day")
    op.drop_column("tenant", "max_reading_seconds_per_day")
    op.drop_column("batch", "reading_limit_seconds")
    op.drop_column("ledger", "reading_price_micros")
    for table in ("ledger", "batch"):
        op.drop_column(table, "reading_microseconds")
