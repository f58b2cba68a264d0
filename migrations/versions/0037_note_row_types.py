"""Note the types of a step's rows. The release before writes no output that needs them."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0037"
down_revision: str | None = "0036"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("run_step", sa.Column("row_schema", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("run_step", "row_schema")
