"""Find the next queues."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0025"
down_revision: str | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # By default a queue counts as one that waits: so it is in what the release of before writes.
    op.add_column("fair_share", sa.Column("waiting_since", sa.DateTime(timezone=True), server_default=sa.func.now()))
    op.add_column("fair_share", sa.Column("marked_at", sa.DateTime(timezone=True)))
    waits = sa.text("waiting_since IS NOT NULL")
    columns = ["model", "priority", "virtual_time", "tenant_id"]
    op.create_index("fair_share_turn_idx", "fair_share", columns, postgresql_where=waits)
    op.create_index("fair_share_age_idx", "fair_share", ["model", "priority", "waiting_since"], postgresql_where=waits)
    op.create_index("tenant_never_urgent_idx", "tenant", ["id"], postgresql_where=sa.text("max_urgent_tokens = 0"))


def downgrade() -> None:
    op.drop_index("tenant_never_urgent_idx", "tenant")
    op.drop_index("fair_share_age_idx", "fair_share")
    op.drop_index("fair_share_turn_idx", "fair_share")
    op.drop_column("fair_share", "marked_at")
    op.drop_column("fair_share", "waiting_since")
