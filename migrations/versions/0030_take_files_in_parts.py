"""Take files in parts."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision: str = "0030"
down_revision: str | None = "0029"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "upload",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default="pending"),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("mime_type", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_expires_after_seconds", sa.BigInteger()),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.Column("part_ids", ARRAY(sa.Text())),
        sa.Column("file_id", sa.Text()),
        sa.Column("claim_fence", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("claimed_until", MOMENT),
        sa.CheckConstraint(
            "state IN ('pending', 'completed', 'cancelled', 'expired')", name=op.f("upload_state_check")
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="upload_tenant_id_fkey"),
        sa.ForeignKeyConstraint(["file_id"], ["file.id"], name="upload_file_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="upload_pkey"),
        postgresql_with={"fillfactor": "70"},
    )
    is_pending, has_ended = sa.text("state = 'pending'"), sa.text("ended_at IS NOT NULL")
    op.create_index("upload_pending_idx", "upload", ["tenant_id"], postgresql_where=is_pending)
    op.create_index("upload_expiry_idx", "upload", ["expires_at"], postgresql_where=is_pending)
    op.create_index("upload_ended_idx", "upload", ["ended_at"], postgresql_where=has_ended)
    op.create_table(
        "upload_part",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("object_key", sa.Text(), nullable=False),
        sa.Column("md5", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("deleted_at", MOMENT),
        sa.Column("purge_again_at", MOMENT),
        sa.Column("head_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tail_bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("estimated_input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("estimated_output_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["upload_id"], ["upload.id"], name="upload_part_upload_id_fkey"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="upload_part_tenant_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="upload_part_pkey"),
    )
    is_kept, is_deleted = sa.text("deleted_at IS NULL"), sa.text("deleted_at IS NOT NULL")
    op.create_index("upload_part_upload_id_idx", "upload_part", ["upload_id"])
    op.create_index("upload_part_object_key_idx", "upload_part", ["object_key"])
    op.create_index(
        "upload_part_kept_idx",
        "upload_part",
        ["tenant_id"],
        postgresql_include=["size_bytes"],
        postgresql_where=is_kept,
    )
    op.create_index("upload_part_purge_idx", "upload_part", ["deleted_at"], postgresql_where=is_deleted)


def downgrade() -> None:
    op.drop_table("upload_part")
    op.drop_table("upload")
