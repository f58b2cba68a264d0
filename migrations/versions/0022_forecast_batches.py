"""Forecast batches."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "serving_rate",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokens_per_second", sa.Float()),
        sa.Column("token_ratio", sa.Float(), nullable=False),
        sa.Column("counters", postgresql.JSONB(), nullable=False),
        sa.Column("is_saturated", sa.Boolean(), nullable=False),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model", name="serving_rate_pkey"),
    )
    op.create_table(
        "forecast",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Float()),
        sa.Column("waits_for", sa.Text()),
        sa.Column("made_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", name="forecast_pkey"),
    )


def downgrade() -> None:
    op.drop_table("forecast")
    op.drop_table("serving_rate")
