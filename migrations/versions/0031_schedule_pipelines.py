"""Schedule pipelines."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0031"
down_revision: str | None = "0030"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_OPEN = "state IN ('queued','running','cancelling')"
_IS_KEPT = sa.text("deleted_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "pipeline",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("definition", postgresql.JSONB(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("api_key_id", sa.Text()),
        *_times(),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("pipeline_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("pipeline_pkey")),
    )
    op.create_index("pipeline_name_idx", "pipeline", ["tenant_id", "name"], unique=True, postgresql_where=_IS_KEPT)
    op.create_index("pipeline_tenant_id_created_at_id_idx", "pipeline", ["tenant_id", "created_at", "id"])
    _create_schedule()
    _create_run()
    _create_run_step()
    _create_dataset_file()
    _create_store()


def _create_schedule() -> None:
    op.create_table(
        "schedule",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True)),
        sa.Column("ends_at", sa.DateTime(timezone=True)),
        sa.Column("jitter_seconds", sa.Integer(), server_default="0", nullable=False),
        sa.Column("overlap", sa.Text(), server_default="skip", nullable=False),
        sa.Column("catch_up", sa.Text(), server_default="latest", nullable=False),
        sa.Column("catch_up_seconds", sa.BigInteger(), nullable=False),
        sa.Column("max_failures", sa.Integer()),
        sa.Column("next_at", sa.DateTime(timezone=True)),
        sa.Column("due_at", sa.DateTime(timezone=True)),
        sa.Column("paused_at", sa.DateTime(timezone=True)),
        sa.Column("pause_reason", sa.Text()),
        sa.Column("num_failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("num_skipped", sa.Integer(), server_default="0", nullable=False),
        *_times(),
        sa.CheckConstraint(
            "overlap IN ('skip', 'queue_one', 'queue_all', 'cancel_running')", name=op.f("schedule_overlap_check")
        ),
        sa.CheckConstraint("catch_up IN ('none', 'latest', 'all')", name=op.f("schedule_catch_up_check")),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipeline.id"], name=op.f("schedule_pipeline_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("schedule_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("schedule_pkey")),
    )
    op.create_index("schedule_name_idx", "schedule", ["tenant_id", "name"], unique=True, postgresql_where=_IS_KEPT)
    op.create_index("schedule_tenant_id_created_at_id_idx", "schedule", ["tenant_id", "created_at", "id"])
    op.create_index(op.f("schedule_pipeline_id_idx"), "schedule", ["pipeline_id"])
    op.create_index(
        "schedule_due_idx",
        "schedule",
        ["due_at"],
        postgresql_where=sa.text("due_at IS NOT NULL AND paused_at IS NULL AND deleted_at IS NULL"),
    )


def _create_run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("schedule_id", sa.Text()),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("scheduled_for", sa.DateTime(timezone=True), nullable=False),
        sa.Column("interval_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("interval_end", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("num_missed", sa.Integer(), server_default="1", nullable=False),
        sa.Column("definition", postgresql.JSONB()),
        sa.Column("api_key_id", sa.Text()),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("claim_fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("claimed_by", sa.Text()),
        sa.Column("claimed_until", sa.DateTime(timezone=True)),
        sa.Column("look_at", sa.DateTime(timezone=True)),
        sa.Column("num_tries", sa.Integer(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'skipped', 'cancelling', 'cancelled')",
            name=op.f("run_state_check"),
        ),
        sa.CheckConstraint("kind IN ('cron', 'manual', 'backfill')", name=op.f("run_kind_check")),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipeline.id"], name=op.f("run_pipeline_id_fkey")),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedule.id"], name=op.f("run_schedule_id_fkey")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("run_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("run_pkey")),
        sa.UniqueConstraint("schedule_id", "scheduled_for", "kind", name="run_once_key"),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("run_tenant_id_idempotency_key_key")),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("run_tenant_id_created_at_id_idx", "run", ["tenant_id", "created_at", "id"])
    op.create_index("run_pipeline_id_created_at_id_idx", "run", ["pipeline_id", "created_at", "id"])
    op.create_index("run_open_idx", "run", ["pipeline_id", "scheduled_for", "id"], postgresql_where=sa.text(_OPEN))
    op.create_index(
        "run_under_way_idx",
        "run",
        ["pipeline_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('running','cancelling')"),
    )


def _create_run_step() -> None:
    op.create_table(
        "run_step",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("step_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rows_file_id", sa.Text()),
        sa.Column("batch_id", sa.Text()),
        sa.Column("num_rows", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("prepared_at", sa.DateTime(timezone=True)),
        sa.Column("published", postgresql.JSONB()),
        sa.Column("done_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("run_step_batch_id_fkey")),
        sa.ForeignKeyConstraint(["rows_file_id"], ["file.id"], name=op.f("run_step_rows_file_id_fkey")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("run_step_run_id_fkey")),
        sa.PrimaryKeyConstraint("run_id", "step_no", name=op.f("run_step_pkey")),
    )
    op.create_index(
        op.f("run_step_batch_id_idx"), "run_step", ["batch_id"], postgresql_where=sa.text("batch_id IS NOT NULL")
    )


def _create_dataset_file() -> None:
    op.create_table(
        "dataset_file",
        sa.Column("pipeline_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["pipeline_id"], ["pipeline.id"], name=op.f("dataset_file_pipeline_id_fkey")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("dataset_file_run_id_fkey")),
        sa.PrimaryKeyConstraint("pipeline_id", "step", "key", "version", name=op.f("dataset_file_pkey")),
    )
    op.create_index(op.f("dataset_file_run_id_idx"), "dataset_file", ["run_id"])


def _create_store() -> None:
    op.create_table(
        "store",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("options", postgresql.JSONB(), nullable=False),
        sa.Column("is_writable", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name=op.f("store_tenant_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("store_pkey")),
    )
    op.create_index("store_name_idx", "store", ["tenant_id", "name"], unique=True, postgresql_where=_IS_KEPT)


def _times() -> list[sa.Column[object]]:
    return [
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True)),
    ]


def downgrade() -> None:
    for table in ("store", "dataset_file", "run_step", "run", "schedule", "pipeline"):
        op.drop_table(table)
