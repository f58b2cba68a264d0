"""Price cached prompt tokens, and classes. The release before bills both like any other, and its entries say so."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0032"
down_revision: str | None = "0031"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("model", sa.Column("cached_input_price_micros", sa.BigInteger()))
    for column in ("urgent_price_percent", "bulk_price_percent"):
        op.add_column("model", sa.Column(column, sa.Integer(), server_default="100", nullable=False))
    op.add_column("ledger", sa.Column("cached_input_price_micros", sa.BigInteger()))
    op.add_column("ledger", sa.Column("priority", sa.Text()))


def downgrade() -> None:
    for column in ("priority", "cached_input_price_micros"):
        op.drop_column("ledger", column)
    for column in ("bulk_price_percent", "urgent_price_percent", "cached_input_price_micros"):
        op.drop_column("model", column)
