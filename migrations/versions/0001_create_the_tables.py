"""Create the tables."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "model",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("input_price_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_price_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("model_pkey")),
    )
    op.create_table(
        "result",
        sa.Column("batch_day", sa.Date(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("result_no", sa.BigInteger(), nullable=False),
        sa.Column("status_code", sa.SmallInteger(), nullable=True),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("line", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("batch_day", "batch_id", "line_no", name=op.f("result_pkey")),
        sa.UniqueConstraint("batch_day", "batch_id", "result_no", name=op.f("result_batch_day_batch_id_result_no_key")),
        postgresql_partition_by="RANGE (batch_day)",
    )
    op.create_table(
        "tenant",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("weight", sa.Float(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("weight > 0", name=op.f("tenant_weight_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("tenant_pkey")),
        sa.UniqueConstraint("name", name=op.f("tenant_name_key")),
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("max_chunks", sa.Integer(), nullable=False),
        sa.Column("max_model_len", sa.Integer(), nullable=False),
        sa.Column("engine_stats", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("worker_pkey")),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("api_key_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("api_key_pkey")),
        sa.UniqueConstraint("key_hash", name=op.f("api_key_key_hash_key")),
    )
    op.create_index(op.f("api_key_tenant_id_idx"), "api_key", ["tenant_id"], unique=False)
    op.create_table(
        "budget",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("limit_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reserved_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("spent_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint("reserved_tokens >= 0", name=op.f("budget_reserved_check")),
        sa.CheckConstraint("spent_tokens >= 0", name=op.f("budget_spent_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("budget_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("budget_pkey")),
        postgresql_with={"fillfactor": "50"},
    )
    op.create_table(
        "fair_share",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("virtual_time", sa.Float(), server_default="0", nullable=False),
        sa.Column("served_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("fair_share_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("model", "priority", "tenant_id", name=op.f("fair_share_pkey")),
    )
    op.create_table(
        "file",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("object_key", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("num_requests", sa.BigInteger(), nullable=True),
        sa.Column("estimated_input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("estimated_output_tokens", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("file_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("file_pkey")),
    )
    op.create_index(op.f("file_tenant_id_created_at_id_idx"), "file", ["tenant_id", "created_at", "id"], unique=False)
    op.create_table(
        "batch",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), server_default="normal", nullable=False),
        sa.Column("invalid_lines", sa.Text(), server_default="fail", nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("output_expires_after_seconds", sa.BigInteger(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="validating", nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("errors", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("num_unlisted_errors", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("hinted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("num_requests", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_completed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_file_id", sa.Text(), nullable=True),
        sa.Column("error_file_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("in_progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finalizing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelling_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("invalid_lines IN ('fail', 'skip')", name=op.f("batch_invalid_lines_check")),
        sa.CheckConstraint("priority IN ('urgent', 'normal', 'bulk')", name=op.f("batch_priority_check")),
        sa.CheckConstraint(
            "state IN ('validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled')",  # noqa: E501
            name=op.f("batch_state_check"),
        ),
        sa.ForeignKeyConstraint(["error_file_id"], ["file.id"], name=op.f("batch_error_file_id_fkey")),
        sa.ForeignKeyConstraint(["input_file_id"], ["file.id"], name=op.f("batch_input_file_id_fkey")),
        sa.ForeignKeyConstraint(["output_file_id"], ["file.id"], name=op.f("batch_output_file_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("batch_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("batch_pkey")),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("batch_tenant_id_idempotency_key_key")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("batch_fingerprint_idx", "batch", ["tenant_id", "fingerprint", "created_at"], unique=False)
    op.create_index(
        "batch_live_idx",
        "batch",
        ["state"],
        unique=False,
        postgresql_where=sa.text("state IN ('validating','in_progress','finalizing','cancelling')"),
    )
    op.create_index(op.f("batch_tenant_id_created_at_id_idx"), "batch", ["tenant_id", "created_at", "id"], unique=False)
    op.create_table(
        "chunk",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=False),
        sa.Column("num_lines", sa.BigInteger(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("byte_start", sa.BigInteger(), nullable=False),
        sa.Column("byte_end", sa.BigInteger(), nullable=False),
        sa.Column("estimated_tokens", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="ready", nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("losses", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker_id", sa.Text(), nullable=True),
        sa.Column("hinted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "state IN ('ready', 'leased', 'done', 'split', 'withdrawn')", name=op.f("chunk_state_check")
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("chunk_batch_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("chunk_pkey")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index(op.f("chunk_batch_id_idx"), "chunk", ["batch_id"], unique=False)
    op.create_index(
        "chunk_hinted_idx",
        "chunk",
        ["model"],
        unique=False,
        postgresql_where=sa.text("state = 'ready' AND hinted_at IS NOT NULL"),
    )
    op.create_index("chunk_leased_idx", "chunk", ["id"], unique=False, postgresql_where=sa.text("state = 'leased'"))
    op.create_index(
        "chunk_open_idx", "chunk", ["batch_id"], unique=False, postgresql_where=sa.text("state IN ('ready','leased')")
    )
    op.create_index(
        "chunk_ready_idx",
        "chunk",
        ["model", "priority", "tenant_id", "expires_at", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_table(
        "ledger",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("chunk_id", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("flush_no", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("num_results", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("ledger_batch_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("ledger_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("ledger_pkey")),
        sa.UniqueConstraint("chunk_id", "fence", "flush_no", name=op.f("ledger_chunk_id_fence_flush_no_key")),
    )
    op.create_index(op.f("ledger_batch_id_idx"), "ledger", ["batch_id"], unique=False)
    op.create_index(op.f("ledger_tenant_id_created_at_idx"), "ledger", ["tenant_id", "created_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ledger_tenant_id_created_at_idx"), table_name="ledger")
    op.drop_index(op.f("ledger_batch_id_idx"), table_name="ledger")
    op.drop_table("ledger")
    op.drop_index("chunk_ready_idx", table_name="chunk")
    op.drop_index("chunk_open_idx", table_name="chunk")
    op.drop_index("chunk_leased_idx", table_name="chunk")
    op.drop_index("chunk_hinted_idx", table_name="chunk")
    op.drop_index(op.f("chunk_batch_id_idx"), table_name="chunk")
    op.drop_table("chunk")
    op.drop_index(op.f("batch_tenant_id_created_at_id_idx"), table_name="batch")
    op.drop_index("batch_live_idx", table_name="batch")
    op.drop_index("batch_fingerprint_idx", table_name="batch")
    op.drop_table("batch")
    op.drop_index(op.f("file_tenant_id_created_at_id_idx"), table_name="file")
    op.drop_table("file")
    op.drop_table("fair_share")
    op.drop_table("budget")
    op.drop_index(op.f("api_key_tenant_id_idx"), table_name="api_key")
    op.drop_table("api_key")
    op.drop_table("worker")
    op.drop_table("tenant")
    op.drop_table("result")
    op.drop_table("model")
