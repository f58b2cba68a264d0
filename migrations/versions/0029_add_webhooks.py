"""Add webhooks."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0029"
down_revision: str | None = "0028"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("batch", sa.Column("at_risk_at", _TIME))
    op.create_table(
        "webhook_endpoint",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("old_secret", sa.Text()),
        sa.Column("old_secret_until", _TIME),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("disabled_at", _TIME),
        sa.Column("disabled_reason", sa.Text()),
        sa.Column("failing_since", _TIME),
        sa.PrimaryKeyConstraint("id", name="webhook_endpoint_pkey"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="webhook_endpoint_tenant_id_fkey"),
    )
    op.create_index(
        "webhook_endpoint_tenant_id_created_at_id_idx", "webhook_endpoint", ["tenant_id", "created_at", "id"]
    )
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("event_data", postgresql.JSONB(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("due_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("ended_at", _TIME),
        sa.Column("problem", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="webhook_delivery_pkey"),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["webhook_endpoint.id"], name="webhook_delivery_endpoint_id_fkey", ondelete="CASCADE"
        ),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(
        "webhook_delivery_endpoint_id_created_at_id_idx", "webhook_delivery", ["endpoint_id", "created_at", "id"]
    )
    op.create_index(
        "webhook_delivery_due_idx",
        "webhook_delivery",
        ["tenant_id", "due_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "webhook_delivery_ended_idx",
        "webhook_delivery",
        ["ended_at"],
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
    op.create_table(
        "webhook_attempt",
        sa.Column("delivery_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("milliseconds", sa.BigInteger(), nullable=False),
        sa.Column("status_code", sa.Integer()),
        sa.Column("answer", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("delivery_id", "number", name="webhook_attempt_pkey"),
        sa.ForeignKeyConstraint(
            ["delivery_id"], ["webhook_delivery.id"], name="webhook_attempt_delivery_id_fkey", ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    op.drop_table("webhook_attempt")
    op.drop_table("webhook_delivery")
    op.drop_table("webhook_endpoint")
    op.drop_column("batch", "at_risk_at")
