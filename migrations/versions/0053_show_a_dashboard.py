"""Keep what the dashboard needs: the secret that signs cookies, for every replica of the API, and points of plots."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0053"
down_revision: str | None = "0052"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "cookie_secret",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, server_default="1", nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("cookie_secret_id_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("cookie_secret_pkey")),
    )
    op.create_table(
        "plot_point",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "label", "tenant_id", "seconds", "at", name=op.f("plot_point_pkey")),
    )
    op.create_index(op.f("plot_point_seconds_at_idx"), "plot_point", ["seconds", "at"])
    op.create_table(
        "plot_mark",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, server_default="1", nullable=False),
        sa.Column("ledger_id", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("plot_mark_id_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("plot_mark_pkey")),
    )


def downgrade() -> None:
    op.drop_table("plot_mark")
    op.drop_table("plot_point")
    op.drop_table("cookie_secret")
