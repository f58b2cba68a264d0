"""Keep the statistics of a run's answers, when reports are due and were mailed, and forms of webhooks."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "1002"
down_revision: str | None = "1001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # What takes longest comes before the locks that keep runs from being written, and that of files comes last.
    op.create_index("run_pipeline_id_scheduled_for_idx", "run", ["pipeline_id", "scheduled_for"])
    op.add_column("run_step", sa.Column("statistics", postgresql.JSONB(), nullable=True))
    op.add_column("run_step", sa.Column("failed_rows_file_id", sa.Text(), nullable=True))
    op.create_table(
        "report_subscription",
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("at_minutes", sa.Integer(), nullable=False),
        sa.Column("mail_to", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("include_rows", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipeline.id"], name=op.f("report_subscription_pipeline_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("report_subscription_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("pipeline_id", name=op.f("report_subscription_pkey")),
    )
    op.create_index(op.f("report_subscription_next_at_idx"), "report_subscription", ["next_at"])
    op.create_index(op.f("report_subscription_tenant_id_idx"), "report_subscription", ["tenant_id"])
    op.create_table(
        "due_report",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("mail_to", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("include_rows", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("num_tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'sent', 'failed', 'none')", name=op.f("due_report_state_check")),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipeline.id"], name=op.f("due_report_pipeline_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("due_report_pkey")),
        sa.UniqueConstraint("pipeline_id", "day", name=op.f("due_report_pipeline_id_day_key")),
    )
    op.create_index("due_report_due_idx", "due_report", ["due_at"], postgresql_where=sa.text("state = 'pending'"))
    op.create_index(op.f("due_report_tenant_id_idx"), "due_report", ["tenant_id"])
    op.add_column("webhook_endpoint", sa.Column("payload_format", sa.Text(), server_default="event", nullable=False))
    op.create_check_constraint(
        op.f("webhook_endpoint_payload_format_check"), "webhook_endpoint", "payload_format IN ('event', 'slack')"
    )
    op.create_foreign_key(
        op.f("run_step_failed_rows_file_id_fkey"), "run_step", "file", ["failed_rows_file_id"], ["id"]
    )


def downgrade() -> None:
    op.execute("DELETE FROM webhook_delivery WHERE event_type = 'report.ready'")  # which earlier code cannot name
    op.execute("UPDATE webhook_endpoint SET event_types = array_remove(event_types, 'report.ready')")
    op.drop_column("webhook_endpoint", "payload_format")
    op.drop_table("due_report")
    op.drop_table("report_subscription")
    op.drop_index("run_pipeline_id_scheduled_for_idx", table_name="run")
    op.drop_column("run_step", "failed_rows_file_id")
    op.drop_column("run_step", "statistics")
