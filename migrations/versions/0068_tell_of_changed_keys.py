"""Notify API processes of changed keys and tenants, which they keep for two seconds; limit bytes a minute."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0068"
down_revision: str | None = "0067"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_NOTIFY = """
    CREATE FUNCTION notify_changed_keys() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('tokenmill_keys', '');
        RETURN NULL;
    END
    $$
"""
# Not of last_used_at, which is noted once a minute.
_COLUMNS = "tenant_id, key_hash, revoked_at, scopes, expires_at, previous_hash, previous_until"
_TRIGGERS = {
    "api_key": f"INSERT OR DELETE OR UPDATE OF {_COLUMNS}",
    "tenant": "UPDATE",
}


def upgrade() -> None:
    op.add_column("tenant", sa.Column("max_bytes_per_minute", sa.BigInteger()))
    op.execute(_NOTIFY)
    for table, change in _TRIGGERS.items():
        op.execute(
            f"CREATE TRIGGER {table}_notifies AFTER {change} ON {table} FOR EACH STATEMENT "
            "EXECUTE FUNCTION notify_changed_keys()"
        )


def downgrade() -> None:
    for table in _TRIGGERS:
        op.execute(f"DROP TRIGGER {table}_notifies ON {table}")
    op.execute("DROP FUNCTION notify_changed_keys")
    op.drop_column("tenant", "max_bytes_per_minute")
