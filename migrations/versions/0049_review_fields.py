"""Review extracted fields: what a person should look at, who has it, and what was decided."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0049"
down_revision: str | None = "0048"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "review",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("extraction_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("document_id", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("place", sa.JSON(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("urgency", sa.Float(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("claim", sa.Text()),
        sa.Column("claimed_until", MOMENT),
        sa.Column("verdict", sa.Text()),
        sa.Column("correction", JSONB()),
        sa.Column("is_right", sa.Boolean()),
        sa.Column("decided_by", sa.Text()),
        sa.Column("decided_at", MOMENT),
        sa.CheckConstraint("reason IN ('doubt', 'sample')", name=op.f("review_reason_check")),
        sa.CheckConstraint("verdict IN ('accept', 'correct', 'reject')", name=op.f("review_verdict_check")),
        sa.CheckConstraint("(verdict IS NULL) = (decided_at IS NULL)", name=op.f("review_decided_check")),
        sa.ForeignKeyConstraint(["extraction_id"], ["extraction.id"], name="review_extraction_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="review_pkey"),
    )
    op.create_index("review_extraction_id_document_id_idx", "review", ["extraction_id", "document_id"])
    op.create_index(
        "review_open_idx",
        "review",
        ["extraction_id", sa.text("urgency DESC"), "id"],
        postgresql_where=sa.text("decided_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("review")
