"""Show running lines."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0028"
down_revision: str | None = "0027"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("forecast", sa.Column("running_lines", sa.Integer()))


def downgrade() -> None:
    op.drop_column("forecast", "running_lines")
