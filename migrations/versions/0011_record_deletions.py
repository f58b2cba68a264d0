"""Record deletions."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_MOMENTS = {"batch": ("deleted_at", "results_deleted_at", "results_purged_at"), "tenant": ("deleted_at",)}


def upgrade() -> None:
    op.create_table(
        "deletion",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text()),
        sa.Column("deleted_by", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="deletion_pkey"),
    )
    op.create_index("deletion_subject_id_idx", "deletion", ["subject_id"])
    for table, columns in _MOMENTS.items():
        for column in columns:
            op.add_column(table, sa.Column(column, sa.DateTime(timezone=True)))
    op.add_column("tenant", sa.Column("retention_days", sa.Integer()))
    op.add_column("file", sa.Column("purge_again_at", sa.DateTime(timezone=True)))
    op.create_index("batch_input_file_id_idx", "batch", ["input_file_id"])
    for column in ("output_file_id", "error_file_id"):
        op.create_index(f"batch_{column}_idx", "batch", [column], postgresql_where=sa.text(f"{column} IS NOT NULL"))
    op.create_index(
        "batch_results_kept_idx", "batch", ["created_at"], postgresql_where=sa.text("results_deleted_at IS NULL")
    )
    op.create_index(
        "batch_results_purge_idx",
        "batch",
        ["results_deleted_at"],
        postgresql_where=sa.text("results_purged_at IS NULL AND results_deleted_at IS NOT NULL"),
    )
    op.create_index("file_object_key_idx", "file", ["object_key"])


def downgrade() -> None:
    op.drop_index("file_object_key_idx", "file")
    for name in ("results_purge", "results_kept", "error_file_id", "output_file_id", "input_file_id"):
        op.drop_index(f"batch_{name}_idx", "batch")
    op.drop_column("file", "purge_again_at")
    op.drop_column("tenant", "retention_days")
    for table, columns in _MOMENTS.items():
        for column in columns:
            op.drop_column(table, column)
    op.drop_table("deletion")
