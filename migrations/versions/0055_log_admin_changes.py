"""Log every admin change, in a table to which rows are only added: not even this service's code can change one."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0055"
down_revision: str | None = "0054"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_REFUSE = """
    CREATE FUNCTION refuse_change_of_admin_log() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'admin_log is append-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
    END
    $$
"""


def upgrade() -> None:
    op.create_table(
        "admin_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text()),
        sa.Column("before", postgresql.JSONB()),
        sa.Column("after", postgresql.JSONB()),
        sa.PrimaryKeyConstraint("id", name=op.f("admin_log_pkey")),
    )
    op.execute(_REFUSE)
    for name, when in (("admin_log_keeps_rows", "UPDATE OR DELETE"), ("admin_log_keeps_all", "TRUNCATE")):
        each = "STATEMENT" if when == "TRUNCATE" else "ROW"
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {when} ON admin_log FOR EACH {each} "
            "EXECUTE FUNCTION refuse_change_of_admin_log()"
        )
        op.execute(f"ALTER TABLE admin_log ENABLE ALWAYS TRIGGER {name}")


def downgrade() -> None:
    op.drop_table("admin_log")
    op.execute("DROP FUNCTION refuse_change_of_admin_log")
