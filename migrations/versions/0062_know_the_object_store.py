"""Know which object store is this database's, and put off batches whose input it does not give."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0062"
down_revision: str | None = "0061"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_BEFORE = ("planned", "ready", "leased", "waiting", "done", "split", "withdrawn")
_AFTER = ("planned", "ready", "leased", "waiting", "deferred", "done", "split", "withdrawn")


def upgrade() -> None:
    op.create_table(
        "store_marker",
        sa.Column("id", sa.SmallInteger(), server_default=sa.text("'1'"), autoincrement=False, nullable=False),
        sa.Column("marker", sa.Text(), nullable=False),
        sa.Column("written_at", sa.DateTime(timezone=True)),
        sa.CheckConstraint("id = 1", name=op.f("store_marker_id_check")),
        sa.PrimaryKeyConstraint("id", name="store_marker_pkey"),
    )
    op.add_column("batch", sa.Column("input_missed_at", sa.DateTime(timezone=True)))
    op.add_column("batch", sa.Column("deferred_until", sa.DateTime(timezone=True)))
    deferred = sa.text("deferred_until IS NOT NULL")
    op.create_index("batch_deferred_idx", "batch", ["deferred_until"], postgresql_where=deferred)
    _set_chunk_states(_AFTER)
    op.create_index("chunk_deferred_idx", "chunk", ["batch_id"], postgresql_where=sa.text("state = 'deferred'"))


def downgrade() -> None:
    op.drop_index("chunk_deferred_idx", "chunk")
    op.execute("UPDATE chunk SET state = 'ready' WHERE state = 'deferred'")
    _set_chunk_states(_BEFORE)
    op.drop_index("batch_deferred_idx", "batch")
    op.drop_column("batch", "deferred_until")
    op.drop_column("batch", "input_missed_at")
    op.drop_table("store_marker")


def _set_chunk_states(states: Sequence[str]) -> None:
    op.drop_constraint(op.f("chunk_state_check"), "chunk")
    allowed = ", ".join(repr(state) for state in states)
    op.create_check_constraint(op.f("chunk_state_check"), "chunk", f"state IN ({allowed})")
