"""Note what chunks need."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("chunk", sa.Column("needed_tokens", sa.BigInteger()))
    _index_untried("needed_tokens IS NULL")


def downgrade() -> None:
    _index_untried("fence = 0")
    op.drop_column("chunk", "needed_tokens")


def _index_untried(condition: str) -> None:
    op.drop_index("chunk_untried_idx", "chunk")
    op.create_index(
        "chunk_untried_idx",
        "chunk",
        ["batch_id", "waits_for_tokens", "id"],
        postgresql_where=sa.text(f"state = 'waiting' AND {condition}"),
    )
