"""Cover lines before they run, and let chunks wait for room in their tenant's budget."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_BEFORE = ("ready", "leased", "done", "split", "withdrawn")


def upgrade() -> None:
    _set_chunk_states(("ready", "leased", "waiting", "done", "split", "withdrawn"))
    for table in ("batch", "chunk"):
        op.add_column(table, _tokens("covered_tokens"))
        op.add_column(table, sa.Column("waits_for_tokens", sa.BigInteger(), nullable=True))
    op.add_column("batch", sa.Column("uncovered_lines", sa.Text(), server_default="wait", nullable=False))
    op.create_check_constraint(op.f("batch_uncovered_lines_check"), "batch", "uncovered_lines IN ('wait', 'fail')")
    op.create_index(
        "chunk_waiting_idx",
        "chunk",
        ["batch_id", "waits_for_tokens", "id"],
        unique=False,
        postgresql_where=sa.text("state = 'waiting'"),
    )
    op.create_index(
        "batch_waiting_idx",
        "batch",
        ["expires_at", "id"],
        unique=False,
        postgresql_where=sa.text("waits_for_tokens IS NOT NULL"),
    )
    op.add_column("budget", _tokens("committed_tokens"))
    # What is above its limit today became so while a limit was an estimate.
    op.execute("UPDATE budget SET committed_tokens = spent_tokens + reserved_tokens")


def downgrade() -> None:
    op.drop_column("budget", "committed_tokens")
    op.drop_index("batch_waiting_idx", table_name="batch")
    op.drop_index("chunk_waiting_idx", table_name="chunk")
    op.drop_constraint(op.f("batch_uncovered_lines_check"), "batch")
    op.drop_column("batch", "uncovered_lines")
    for table in ("chunk", "batch"):
        op.drop_column(table, "waits_for_tokens")
        op.drop_column(table, "covered_tokens")
    op.execute("UPDATE chunk SET state = 'ready' WHERE state = 'waiting'")
    _set_chunk_states(_BEFORE)


def _tokens(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("'0'"), nullable=False)


def _set_chunk_states(states: Sequence[str]) -> None:
    op.drop_constraint(op.f("chunk_state_check"), "chunk")
    allowed = ", ".join(repr(state) for state in states)
    op.create_check_constraint(op.f("chunk_state_check"), "chunk", f"state IN ({allowed})")
