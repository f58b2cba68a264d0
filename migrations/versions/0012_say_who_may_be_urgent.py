"""Say who may be urgent. Whoever is there keeps what everybody had."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CHECK = "best_priority IN ('urgent', 'normal', 'bulk')"


def upgrade() -> None:
    op.add_column("tenant", sa.Column("best_priority", sa.Text(), server_default="urgent", nullable=False))
    op.create_check_constraint(op.f("tenant_best_priority_check"), "tenant", _CHECK)


def downgrade() -> None:
    op.drop_constraint(op.f("tenant_best_priority_check"), "tenant")
    op.drop_column("tenant", "best_priority")
