"""Give keys scopes, names, an end and a second secret while they are rotated, and let tenants be disabled.

Keys that are there may submit and read, as those that the release before makes. A key of no tenant is an operator's.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0051"
down_revision: str | None = "0050"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    texts = postgresql.ARRAY(sa.Text())
    op.add_column("api_key", sa.Column("scopes", texts, server_default="{submit,read}", nullable=False))
    op.add_column("api_key", sa.Column("name", sa.Text()))
    op.add_column("api_key", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.add_column("api_key", sa.Column("last_used_at", sa.DateTime(timezone=True)))
    op.add_column("api_key", sa.Column("previous_hash", sa.Text()))
    op.add_column("api_key", sa.Column("previous_until", sa.DateTime(timezone=True)))
    op.alter_column("api_key", "tenant_id", nullable=True)
    op.create_unique_constraint("api_key_previous_hash_key", "api_key", ["previous_hash"])
    op.create_check_constraint("scopes", "api_key", _SCOPES)
    op.add_column("tenant", sa.Column("disabled_at", sa.DateTime(timezone=True)))


_SCOPES = """
    CASE WHEN tenant_id IS NULL THEN scopes = '{admin}' ELSE scopes <@ '{submit,read}' AND cardinality(scopes) > 0 END
"""


def downgrade() -> None:
    op.drop_column("tenant", "disabled_at")
    op.drop_constraint("api_key_scopes_check", "api_key")
    op.execute("DELETE FROM api_key WHERE tenant_id IS NULL")
    op.alter_column("api_key", "tenant_id", nullable=False)
    for column in ("previous_until", "previous_hash", "last_used_at", "expires_at", "name", "scopes"):
        op.drop_column("api_key", column)
