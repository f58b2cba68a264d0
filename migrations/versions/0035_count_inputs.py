"""Count inputs."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0035"
down_revision: str | None = "0034"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "input_count",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default="counting"),
        sa.Column("failure", sa.Text()),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("next_line", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("next_byte", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_requests", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_invalid", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("listed", JSONB(), nullable=False, server_default="[]"),
        sa.Column("claim_fence", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("claimed_until", MOMENT),
        sa.Column("last_turn_at", MOMENT),
        sa.CheckConstraint("state IN ('counting', 'counted', 'failed')", name=op.f("input_count_state_check")),
        sa.CheckConstraint("priority IN ('urgent', 'normal', 'bulk')", name=op.f("input_count_priority_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="input_count_tenant_id_fkey"),
        sa.ForeignKeyConstraint(["input_file_id"], ["file.id"], name="input_count_input_file_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="input_count_pkey"),
        postgresql_with={"fillfactor": "70"},
    )
    is_open = sa.text("state = 'counting'")
    op.create_index("input_count_open_idx", "input_count", ["model"], postgresql_where=is_open)
    op.create_index("input_count_tenant_id_idx", "input_count", ["tenant_id"])
    op.create_index("input_count_created_at_idx", "input_count", ["created_at"])


def downgrade() -> None:
    op.drop_table("input_count")
