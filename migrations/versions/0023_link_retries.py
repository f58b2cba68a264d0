"""Link retries with what they retry."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0023"
down_revision: str | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("retry_of", sa.Text()))


def downgrade() -> None:
    op.drop_column("batch", "retry_of")
