"""Note truncated answers in the ledger. Entries from before do not know theirs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0044"
down_revision: str | None = "0043"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("ledger", sa.Column("num_truncated", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("ledger", "num_truncated")
