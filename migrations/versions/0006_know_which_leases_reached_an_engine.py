"""Know which leases reached an engine."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("chunk", sa.Column("started_fence", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("chunk", "started_fence")
