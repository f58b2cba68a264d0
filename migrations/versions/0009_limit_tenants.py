"""Limit tenants."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

LIMITS = ("open_batches", "enqueued_tokens", "files", "stored_bytes")


def upgrade() -> None:
    for limit in LIMITS:
        op.add_column("tenant", sa.Column(f"max_{limit}", sa.BigInteger()))
    op.create_index(
        "batch_open_idx",
        "batch",
        ["tenant_id"],
        postgresql_where=sa.text("state IN ('validating','in_progress','finalizing','cancelling')"),
    )
    op.create_index(
        "file_kept_idx",
        "file",
        ["tenant_id"],
        postgresql_include=["size_bytes", "expires_at"],
        postgresql_where=sa.text("deleted_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("file_kept_idx", "file")
    op.drop_index("batch_open_idx", "batch")
    for limit in reversed(LIMITS):
        op.drop_column("tenant", f"max_{limit}")
