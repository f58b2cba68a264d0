"""Note which key submitted a batch, and what time of workers it took."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("api_key_id", sa.Text()))
    for table in ("batch", "ledger"):
        op.add_column(table, sa.Column("worker_microseconds", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    for table in ("ledger", "batch"):
        op.drop_column(table, "worker_microseconds")
    op.drop_column("batch", "api_key_id")
