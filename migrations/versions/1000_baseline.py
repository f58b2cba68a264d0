"""Create the tables; `migrations.bridge` upgrades earlier schemas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from alembic import op

revision: str = "1000"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_PARTS = (
    "accounts",
    "files",
    "batches",
    "chunks",
    "result_days",
    "serving",
    "flows",
    "pipelines",
    "extractions",
    "indexes",
    "webhooks",
    "upkeep",
)
"""In an order in which each table follows those it refers to."""
_FOLDER = Path(__file__).resolve().parents[1] / "baseline"


def upgrade() -> None:
    for part in _PARTS:
        op.execute(_sql(part))


def downgrade() -> None:
    tables = [name for part in _PARTS for name in re.findall(r"^CREATE TABLE (\w+)", _sql(part), re.MULTILINE)]
    functions = re.findall(r"FUNCTION (?:%1\$I\.)?(\w+)\(", "".join(map(_sql, _PARTS)))
    for table in reversed(tables):
        op.execute(f"DROP TABLE {table}")
    for function in sorted(set(functions)):
        op.execute(f"DROP FUNCTION {function}")


def _sql(part: str) -> str:
    return (_FOLDER / f"{part}.sql").read_text(encoding="utf-8")
