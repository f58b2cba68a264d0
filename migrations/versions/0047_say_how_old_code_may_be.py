"""Say how old code may be that runs on the schema; let releases work on that do not know of fingerprints."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0047"
down_revision: str | None = "0046"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    floor = op.create_table(
        "schema_floor",
        sa.Column("id", sa.SmallInteger(), server_default=sa.text("'1'"), autoincrement=False, nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("schema_floor_id_check")),
        sa.PrimaryKeyConstraint("id", name="schema_floor_pkey"),
    )
    op.bulk_insert(floor, [{"id": 1, "revision": "0001"}])
    # No model has it: such output is computed anew.
    op.alter_column("checkpoint", "model_fingerprint", server_default="")


def downgrade() -> None:
    op.alter_column("checkpoint", "model_fingerprint", server_default=None)
    op.drop_table("schema_floor")
