"""Let late lines leave the house, models want workers, and workers serve adapters or several models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from alembic import op

revision: str = "1001"
down_revision: str | None = "1000"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_SQL = Path(__file__).resolve().parents[1] / "steps" / "1001.sql"
_ADDED = {
    "tenant": ("may_leave_house",),
    "batch": ("adapter", "server_model", "num_spilled"),
    "model": ("base", "adapter", "has_own_prices"),
    "forecast": ("is_late",),
    "ledger": ("spill_picos",),
    "worker": ("spill_budget_picos", "adapters", "may_serve", "left_out"),
}


def upgrade() -> None:
    op.execute(_SQL.read_text(encoding="utf-8"))


def downgrade() -> None:
    op.execute("DROP FUNCTION tokenmill_wanted_workers(text)")
    for table in ("due_work", "scaling", "spill_lack", "spill_day"):
        op.drop_table(table)
    for table, names in _ADDED.items():
        for name in names:
            op.drop_column(table, name)
