"""Add items to lists of extracted fields, and drop them: what, by whom and when."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0060"
down_revision: str | None = "0059"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Deleted with its extraction by the database: the release before deletes extractions and does not know the table.
    of_extraction = sa.ForeignKeyConstraint(
        ["extraction_id"], ["extraction.id"], name="item_change_extraction_id_fkey", ondelete="CASCADE"
    )
    op.create_table(
        "item_change",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("extraction_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("document_id", sa.Text(), nullable=False),
        sa.Column("place", sa.JSON(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("change IN ('add', 'drop')", name=op.f("item_change_change_check")),
        of_extraction,
        sa.PrimaryKeyConstraint("id", name="item_change_pkey"),
    )
    op.create_index("item_change_extraction_id_document_id_idx", "item_change", ["extraction_id", "document_id"])


def downgrade() -> None:
    op.drop_table("item_change")
