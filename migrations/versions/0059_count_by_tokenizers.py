"""Count the tokens of an index's passages by a model's tokenizer: which one a model has, and which one an index."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0059"
down_revision: str | None = "0058"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("model", sa.Column("tokenizer", postgresql.JSONB()))
    op.add_column("passage_index", sa.Column("tokenizer_model", sa.Text()))
    op.add_column("passage_index", sa.Column("tokenizer_sha256", sa.Text()))


def downgrade() -> None:
    op.drop_column("passage_index", "tokenizer_sha256")
    op.drop_column("passage_index", "tokenizer_model")
    op.drop_column("model", "tokenizer")
