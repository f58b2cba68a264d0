"""Name the owner of every claim beside its fence, and note since when the database has answered."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0048"
down_revision: str | None = "0047"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CLAIMED = ("webhook_delivery", "upload", "input_count")


def upgrade() -> None:
    for table in _CLAIMED:
        op.add_column(table, sa.Column("claimed_by", sa.Text()))
    op.create_table(
        "uptime",
        sa.Column("id", sa.SmallInteger(), server_default=sa.text("'1'"), autoincrement=False, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("uptime_id_check")),
        sa.PrimaryKeyConstraint("id", name="uptime_pkey"),
    )


def downgrade() -> None:
    op.drop_table("uptime")
    for table in reversed(_CLAIMED):
        op.drop_column(table, "claimed_by")
