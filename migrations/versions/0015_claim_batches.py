"""Claim batches that are validated or written out, and plan their chunks before they start."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_BEFORE = ("ready", "leased", "waiting", "done", "split", "withdrawn")


def upgrade() -> None:
    _set_chunk_states(("planned", *_BEFORE))
    op.add_column("batch", sa.Column("claim_fence", sa.BigInteger(), server_default=sa.text("'0'"), nullable=False))
    op.add_column("batch", sa.Column("claimed_by", sa.Text()))
    op.add_column("batch", sa.Column("claimed_until", sa.DateTime(timezone=True)))


def downgrade() -> None:
    for column in ("claimed_until", "claimed_by", "claim_fence"):
        op.drop_column("batch", column)
    op.execute("DELETE FROM chunk WHERE state = 'planned'")
    _set_chunk_states(_BEFORE)


def _set_chunk_states(states: Sequence[str]) -> None:
    op.drop_constraint(op.f("chunk_state_check"), "chunk")
    allowed = ", ".join(repr(state) for state in states)
    op.create_check_constraint(op.f("chunk_state_check"), "chunk", f"state IN ({allowed})")
