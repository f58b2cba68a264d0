"""Find waiting chunks that nobody has tried."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index(
        "chunk_untried_idx",
        "chunk",
        ["batch_id", "waits_for_tokens", "id"],
        postgresql_where=sa.text("state = 'waiting' AND fence = 0"),
    )


def downgrade() -> None:
    op.drop_index("chunk_untried_idx", "chunk")
