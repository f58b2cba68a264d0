"""Cap batches. The release before makes no batch with a cap, and its workers run such ones as if they had none."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0039"
down_revision: str | None = "0038"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("batch", sa.Column("cap_tokens", sa.BigInteger()))
    op.add_column("batch", sa.Column("cap_picos", sa.Numeric()))


def downgrade() -> None:
    op.drop_column("batch", "cap_picos")
    op.drop_column("batch", "cap_tokens")
