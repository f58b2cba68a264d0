"""Let batches find passages for the prompts of their lines: the batches that do it, and the input that was given."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0054"
down_revision: str | None = "0053"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("source_file_id", sa.Text()))
    op.create_table(
        "batch_stage",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("stage_batch_id", sa.Text(), nullable=False),
        sa.CheckConstraint("kind IN ('embed', 'find')", name=op.f("batch_stage_kind_check")),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name=op.f("batch_stage_batch_id_fkey")),
        sa.ForeignKeyConstraint(["stage_batch_id"], ["batch.id"], name=op.f("batch_stage_stage_batch_id_fkey")),
        sa.PrimaryKeyConstraint("batch_id", "number", name=op.f("batch_stage_pkey")),
    )
    op.create_index(op.f("batch_stage_stage_batch_id_idx"), "batch_stage", ["stage_batch_id"])


def downgrade() -> None:
    op.drop_table("batch_stage")
    op.drop_column("batch", "source_file_id")
