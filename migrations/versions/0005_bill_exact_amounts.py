"""Bill exact amounts with their prices, in place of amounts that were rounded entry by entry.

What was billed before stays where it is, in `cost_micros`, and the release before may go on adding to it: nothing is
rewritten, and what both columns hold is added where it is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("cost_picos", sa.Numeric(), server_default=sa.text("'0'"), nullable=False))
    op.alter_column("ledger", "cost_micros", server_default=sa.text("'0'"))
    op.add_column("ledger", sa.Column("cost_picos", sa.Numeric(), server_default=sa.text("'0'"), nullable=False))
    op.add_column("ledger", sa.Column("input_price_micros", sa.BigInteger(), nullable=True))
    op.add_column("ledger", sa.Column("output_price_micros", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("ledger", "output_price_micros")
    op.drop_column("ledger", "input_price_micros")
    op.drop_column("ledger", "cost_picos")
    op.alter_column("ledger", "cost_micros", server_default=None)
    op.drop_column("batch", "cost_picos")
