"""Note where the record of each document lies in the file of an extraction's records."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0061"
down_revision: str | None = "0060"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Deleted with its extraction by the database: the release before deletes extractions and does not know the table.
    of_extraction = sa.ForeignKeyConstraint(
        ["extraction_id"], ["extraction.id"], name="record_ranges_extraction_id_fkey", ondelete="CASCADE"
    )
    op.create_table(
        "record_ranges",
        sa.Column("extraction_id", sa.Text(), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("ranges", postgresql.JSONB(), nullable=False),
        of_extraction,
        sa.PrimaryKeyConstraint("extraction_id", "bucket", name="record_ranges_pkey"),
    )


def downgrade() -> None:
    op.drop_table("record_ranges")
