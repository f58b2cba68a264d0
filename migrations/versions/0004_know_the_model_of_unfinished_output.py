"""Know which model's files generated unfinished output."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Nobody can tell which model made what is there; its lines are computed from their prompts.
    op.execute("DELETE FROM checkpoint")
    op.add_column("checkpoint", sa.Column("model_fingerprint", sa.Text(), nullable=False))


def downgrade() -> None:
    op.drop_column("checkpoint", "model_fingerprint")
