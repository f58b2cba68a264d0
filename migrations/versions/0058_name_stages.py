"""Name the stages of extractions, of which two come round as often as there is something to ask again."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0058"
down_revision: str | None = "0057"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("extraction_stage", sa.Column("name", sa.Text()))


def downgrade() -> None:
    op.drop_column("extraction_stage", "name")
