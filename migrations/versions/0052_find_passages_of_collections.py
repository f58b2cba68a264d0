"""Find the passages of collections: indexes with their stages and segments, and how models make their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0052"
down_revision: str | None = "0051"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_indexes()
    _create_stages()
    _create_segments()
    op.add_column("model", sa.Column("embedding", JSONB()))


def _create_indexes() -> None:
    table = "passage_index"
    op.create_table(
        table,
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("collection_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text()),
        sa.Column("max_tokens", sa.Integer(), nullable=False),
        sa.Column("overlap_tokens", sa.Integer(), nullable=False),
        sa.Column("language", sa.Text(), nullable=False),
        sa.Column("embedding_model", sa.Text()),
        sa.Column("embedding", JSONB()),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("metadata", JSONB()),
        sa.Column("api_key_id", sa.Text()),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default="in_progress"),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.Column("deleted_at", MOMENT),
        sa.Column("documents_key", sa.Text()),
        sa.Column("signature", JSONB()),
        sa.Column("num_documents", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_indexed", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("failed_codes", JSONB(), nullable=False, server_default="{}"),
        sa.Column("failures", JSONB(), nullable=False, server_default="[]"),
        sa.Column("num_passages", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_without_vector", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("claim_fence", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("claimed_by", sa.Text()),
        sa.Column("claimed_until", MOMENT),
        sa.Column("look_at", MOMENT),
        sa.Column("num_tries", sa.Integer(), nullable=False, server_default="0"),
        sa.CheckConstraint(
            "state IN ('in_progress', 'cancelling', 'completed', 'failed', 'cancelled')",
            name=op.f("passage_index_state_check"),
        ),
        sa.CheckConstraint("priority IN ('urgent', 'normal', 'bulk')", name=op.f("passage_index_priority_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="passage_index_tenant_id_fkey"),
        sa.ForeignKeyConstraint(["collection_id"], ["collection.id"], name="passage_index_collection_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="passage_index_pkey"),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name="passage_index_tenant_id_idempotency_key_key"),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("passage_index_tenant_id_created_at_id_idx", table, ["tenant_id", "created_at", "id"])
    op.create_index("passage_index_collection_id_idx", table, ["collection_id"])
    is_open = sa.text("state IN ('in_progress','cancelling')")
    op.create_index("passage_index_open_idx", table, ["tenant_id"], postgresql_where=is_open)
    is_deleted = sa.text("deleted_at IS NOT NULL")
    op.create_index("passage_index_purge_idx", table, ["deleted_at"], postgresql_where=is_deleted)


def _create_stages() -> None:
    table = "passage_index_stage"
    op.create_table(
        table,
        sa.Column("passage_index_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.Text()),
        sa.Column("num_lines", sa.BigInteger(), nullable=False),
        sa.Column("begun_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("done_at", MOMENT),
        sa.ForeignKeyConstraint(
            ["passage_index_id"], ["passage_index.id"], name="passage_index_stage_passage_index_id_fkey"
        ),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name="passage_index_stage_batch_id_fkey"),
        sa.PrimaryKeyConstraint("passage_index_id", "number", name="passage_index_stage_pkey"),
    )
    has_batch = sa.text("batch_id IS NOT NULL")
    op.create_index("passage_index_stage_batch_id_idx", table, ["batch_id"], postgresql_where=has_batch)


def _create_segments() -> None:
    table = "index_segment"
    op.create_table(
        table,
        sa.Column("index_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("object_key", sa.Text(), nullable=False),
        sa.Column("num_documents", sa.Integer(), nullable=False),
        sa.Column("num_passages", sa.Integer()),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.ForeignKeyConstraint(["index_id"], ["passage_index.id"], name="index_segment_index_id_fkey"),
        sa.PrimaryKeyConstraint("index_id", "number", name="index_segment_pkey"),
    )
    op.create_index("index_segment_object_key_idx", table, ["object_key"])


def downgrade() -> None:
    op.drop_column("model", "embedding")
    for table in ("index_segment", "passage_index_stage", "passage_index"):
        op.drop_table(table)
