"""Keep browsers' sessions as rows, and forget the secret that signed their cookies.

Nobody reads `cookie_secret` any more but the release before, which makes its row anew: a later release drops the table.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0066"
down_revision: str | None = "0065"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "browser_session",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("principal_kind", sa.Text(), nullable=False),
        sa.Column("principal_id", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.Text()),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("user_agent", sa.Text(), nullable=False),
        sa.CheckConstraint("principal_kind IN ('key')", name=op.f("browser_session_principal_kind_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("browser_session_pkey")),
        sa.UniqueConstraint("token_hash", name=op.f("browser_session_token_hash_key")),
    )
    op.create_index(op.f("browser_session_principal_id_idx"), "browser_session", ["principal_id"])
    op.execute("DELETE FROM cookie_secret")


def downgrade() -> None:
    op.drop_table("browser_session")
