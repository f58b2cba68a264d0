"""Let tenants overflow. No batch does before an operator allows it, and the release before knows no such batch."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0036"
down_revision: str | None = "0035"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CHECK = "ALTER TABLE batch ADD CONSTRAINT batch_priority_check CHECK (priority IN ({})) NOT VALID"


def upgrade() -> None:
    op.add_column("tenant", sa.Column("may_overflow", sa.Boolean(), server_default="false", nullable=False))
    op.add_column("budget", sa.Column("overflow_spent_tokens", sa.BigInteger(), server_default="0", nullable=False))
    _replace_check("'urgent', 'normal', 'bulk', 'overflow'")


def downgrade() -> None:
    _replace_check("'urgent', 'normal', 'bulk'")
    op.drop_column("budget", "overflow_spent_tokens")
    op.drop_column("tenant", "may_overflow")


def _replace_check(classes: str) -> None:
    op.execute("ALTER TABLE batch DROP CONSTRAINT batch_priority_check")
    op.execute(_CHECK.format(classes))
    op.execute("ALTER TABLE batch VALIDATE CONSTRAINT batch_priority_check")
