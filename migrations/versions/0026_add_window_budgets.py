"""Add budgets of days, months and keys, in tokens and in money."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("budget", sa.Column("num_window_budgets", sa.Integer(), server_default="0", nullable=False))
    op.add_column("batch", sa.Column("waits_for_picos", sa.Numeric()))
    op.add_column("chunk", sa.Column("covered_picos", sa.Numeric(), server_default="0", nullable=False))
    op.add_column("chunk", sa.Column("waits_for_picos", sa.Numeric()))
    op.add_column("chunk", sa.Column("needed_picos", sa.Numeric()))
    op.create_table(
        "window_budget",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("api_key_id", sa.Text()),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("window_kind", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("limit_amount", sa.Numeric(), nullable=False),
        sa.Column("warn_percent", sa.Integer()),
        sa.Column("window_start", sa.DateTime(timezone=True)),
        sa.Column("window_end", sa.DateTime(timezone=True)),
        sa.Column("spent_amount", sa.Numeric(), server_default="0", nullable=False),
        sa.Column("committed_amount", sa.Numeric(), server_default="0", nullable=False),
        sa.Column("warned_at", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.CheckConstraint("unit IN ('tokens', 'money')", name=op.f("window_budget_unit_check")),
        sa.CheckConstraint("window_kind IN ('day', 'month', 'total')", name=op.f("window_budget_window_kind_check")),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_key.id"], name=op.f("window_budget_api_key_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("window_budget_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("window_budget_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_index(
        "window_budget_scope_idx",
        "window_budget",
        ["tenant_id", sa.text("coalesce(api_key_id, '')"), "unit", "window_kind"],
        unique=True,
    )


def downgrade() -> None:
    op.drop_table("window_budget")
    for column in ("needed_picos", "waits_for_picos", "covered_picos"):
        op.drop_column("chunk", column)
    op.drop_column("batch", "waits_for_picos")
    op.drop_column("budget", "num_window_budgets")
