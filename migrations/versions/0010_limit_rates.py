"""Limit rates."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LIMITS = ("requests_per_minute", "tokens_per_minute", "uploads", "downloads")


def upgrade() -> None:
    for limit in LIMITS:
        op.add_column("tenant", sa.Column(f"max_{limit}", sa.BigInteger()))


def downgrade() -> None:
    for limit in reversed(LIMITS):
        op.drop_column("tenant", f"max_{limit}")
