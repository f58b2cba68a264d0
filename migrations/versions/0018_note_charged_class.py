"""Note the class that a chunk was charged to."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("chunk", sa.Column("charged_priority", sa.Text()))


def downgrade() -> None:
    op.drop_column("chunk", "charged_priority")
