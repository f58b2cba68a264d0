"""Find the newest and the oldest open batches of all tenants, and sum up points of plots over all of them and by day.

What the previous release uses while it still runs is missing in these sums, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0057"
down_revision: str | None = "0056"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_IS_LIVE = "state IN ('validating','in_progress','finalizing','cancelling')"
_SUMMED = "('input_tokens', 'output_tokens', 'cost')"


def upgrade() -> None:
    op.execute(f"""
        INSERT INTO plot_point (name, label, tenant_id, seconds, at, value)
        SELECT name, label, tenant_id, 86400, date_trunc('day', at), sum(value)
        FROM plot_point WHERE name IN {_SUMMED} AND seconds = 3600
        GROUP BY name, label, tenant_id, date_trunc('day', at)
    """)
    op.execute(f"""
        INSERT INTO plot_point (name, label, tenant_id, seconds, at, value)
        SELECT 'total_' || name, label, '', seconds, at, sum(value)
        FROM plot_point WHERE name IN {_SUMMED} GROUP BY name, label, seconds, at
    """)
    # Last: nobody writes to the table of an index until the transaction ends.
    op.create_index(op.f("batch_created_at_id_idx"), "batch", ["created_at", "id"])
    op.create_index("batch_open_age_idx", "batch", ["created_at", "id"], postgresql_where=sa.text(_IS_LIVE))
    at_risk = sa.text(f"at_risk_at IS NOT NULL AND {_IS_LIVE}")
    op.create_index("batch_at_risk_idx", "batch", ["expires_at", "id"], postgresql_where=at_risk)


def downgrade() -> None:
    op.execute("DELETE FROM plot_point WHERE seconds = 86400 OR name LIKE 'total\\_%'")
    for name in ("batch_at_risk_idx", "batch_open_age_idx", "batch_created_at_id_idx"):
        op.drop_index(name, "batch")
