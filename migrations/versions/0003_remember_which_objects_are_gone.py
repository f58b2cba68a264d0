"""Remember which files' objects are gone, so that a purge also takes those of deleted files."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Rows that are marked as deleted are purged once more: of some, the object may have stayed.
    op.add_column("file", sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "file_purge_idx",
        "file",
        [sa.literal_column("LEAST(expires_at, deleted_at)")],
        unique=False,
        postgresql_where=sa.text("purged_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("file_purge_idx", table_name="file")
    op.drop_column("file", "purged_at")
