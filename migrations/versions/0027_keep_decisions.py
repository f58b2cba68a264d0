"""Keep decisions."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0027"
down_revision: str | None = "0026"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "decision",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("num", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.Text()),
        sa.Column("first_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", "kind", "subject", name="decision_pkey"),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("decision_last_at_idx", "decision", ["last_at"], postgresql_using="brin")


def downgrade() -> None:
    op.drop_index("decision_last_at_idx", "decision")
    op.drop_table("decision")
