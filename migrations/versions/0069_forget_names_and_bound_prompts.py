"""Find deleted files that still have their names, and the upload of a file; the purge takes the names, in pieces.

Note what the prompts of a run took of a CPU, and the code of what it failed by.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0069"
down_revision: str | None = "0068"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("run_step", sa.Column("cpu_seconds", sa.Float(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("error_code", sa.Text()))
    # Last: nobody writes to the table of an index until the transaction ends.
    is_named = sa.text("deleted_at IS NOT NULL AND filename <> ''")
    op.create_index("file_named_idx", "file", ["id"], postgresql_where=is_named)
    op.create_index(op.f("upload_file_id_idx"), "upload", ["file_id"])


def downgrade() -> None:
    op.drop_index(op.f("upload_file_id_idx"), "upload")
    op.drop_index("file_named_idx", "file")
    op.drop_column("run", "error_code")
    op.drop_column("run_step", "cpu_seconds")
