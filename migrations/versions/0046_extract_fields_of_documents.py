"""Extract fields of documents: collections of them, and extractions with their stages."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0046"
down_revision: str | None = "0045"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    _create_collections()
    _create_documents()
    _create_extractions()
    _create_stages()


def _create_collections() -> None:
    op.create_table(
        "collection",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("metadata", JSONB()),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("deleted_at", MOMENT),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="collection_tenant_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="collection_pkey"),
    )
    op.create_index("collection_tenant_id_created_at_id_idx", "collection", ["tenant_id", "created_at", "id"])


def _create_documents() -> None:
    table = "collection_document"
    op.create_table(
        table,
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("collection_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text()),
        sa.Column("store", sa.Text()),
        sa.Column("key", sa.Text()),
        sa.Column("version", sa.Text()),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("deleted_at", MOMENT),
        sa.Column("sha256", sa.Text()),
        sa.Column("object_key", sa.Text()),
        sa.Column("num_pages", sa.BigInteger()),
        sa.Column("num_characters", sa.BigInteger()),
        sa.Column("error", JSONB()),
        sa.CheckConstraint(
            "(file_id IS NULL) = (store IS NOT NULL AND key IS NOT NULL)", name=op.f("collection_document_source_check")
        ),
        sa.ForeignKeyConstraint(["collection_id"], ["collection.id"], name="collection_document_collection_id_fkey"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="collection_document_tenant_id_fkey"),
        sa.PrimaryKeyConstraint("id", name="collection_document_pkey"),
    )
    op.create_index("collection_document_number_idx", table, ["collection_id", "number"])
    of_file = sa.text("deleted_at IS NULL AND file_id IS NOT NULL")
    op.create_index(
        "collection_document_file_idx", table, ["collection_id", "file_id"], unique=True, postgresql_where=of_file
    )
    of_store = sa.text("deleted_at IS NULL AND file_id IS NULL")
    op.create_index(
        "collection_document_key_idx", table, ["collection_id", "store", "key"], unique=True, postgresql_where=of_store
    )
    is_read = sa.text("object_key IS NOT NULL")
    op.create_index("collection_document_object_idx", table, ["object_key"], postgresql_where=is_read)
    is_deleted = sa.text("deleted_at IS NOT NULL")
    op.create_index("collection_document_purge_idx", table, ["deleted_at"], postgresql_where=is_deleted)


def _create_extractions() -> None:
    op.create_table(
        "extraction",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("collection_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("plan", JSONB(), nullable=False),
        sa.Column("again", sa.Boolean(), nullable=False),
        sa.Column("parquet", sa.Boolean(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("output_expires_after_seconds", sa.BigInteger()),
        sa.Column("metadata", JSONB()),
        sa.Column("api_key_id", sa.Text()),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, server_default="in_progress"),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.Column("documents_file_id", sa.Text()),
        sa.Column("plan_file_id", sa.Text()),
        sa.Column("output_file_id", sa.Text()),
        sa.Column("parquet_file_id", sa.Text()),
        sa.Column("num_documents", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("num_done", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("failed_codes", JSONB(), nullable=False, server_default="{}"),
        sa.Column("num_to_review", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("claim_fence", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("claimed_by", sa.Text()),
        sa.Column("claimed_until", MOMENT),
        sa.Column("look_at", MOMENT),
        sa.Column("num_tries", sa.Integer(), nullable=False, server_default="0"),
        sa.CheckConstraint(
            "state IN ('in_progress', 'cancelling', 'completed', 'failed', 'cancelled')",
            name=op.f("extraction_state_check"),
        ),
        sa.CheckConstraint("priority IN ('urgent', 'normal', 'bulk')", name=op.f("extraction_priority_check")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="extraction_tenant_id_fkey"),
        sa.ForeignKeyConstraint(["collection_id"], ["collection.id"], name="extraction_collection_id_fkey"),
        *(
            sa.ForeignKeyConstraint([f"{name}_file_id"], ["file.id"], name=f"extraction_{name}_file_id_fkey")
            for name in ("documents", "plan", "output", "parquet")
        ),
        sa.PrimaryKeyConstraint("id", name="extraction_pkey"),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name="extraction_tenant_id_idempotency_key_key"),
        postgresql_with={"fillfactor": "70"},
    )
    op.create_index("extraction_tenant_id_created_at_id_idx", "extraction", ["tenant_id", "created_at", "id"])
    op.create_index("extraction_collection_id_idx", "extraction", ["collection_id"])
    is_open = sa.text("state IN ('in_progress','cancelling')")
    op.create_index("extraction_open_idx", "extraction", ["tenant_id"], postgresql_where=is_open)
    has_ended = sa.text("ended_at IS NOT NULL")
    op.create_index("extraction_ended_idx", "extraction", ["ended_at"], postgresql_where=has_ended)


def _create_stages() -> None:
    op.create_table(
        "extraction_stage",
        sa.Column("extraction_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.Text()),
        sa.Column("num_lines", sa.BigInteger(), nullable=False),
        sa.Column("begun_at", MOMENT, nullable=False, server_default=sa.func.now()),
        sa.Column("done_at", MOMENT),
        sa.ForeignKeyConstraint(["extraction_id"], ["extraction.id"], name="extraction_stage_extraction_id_fkey"),
        sa.ForeignKeyConstraint(["batch_id"], ["batch.id"], name="extraction_stage_batch_id_fkey"),
        sa.PrimaryKeyConstraint("extraction_id", "number", name="extraction_stage_pkey"),
    )
    has_batch = sa.text("batch_id IS NOT NULL")
    op.create_index("extraction_stage_batch_id_idx", "extraction_stage", ["batch_id"], postgresql_where=has_batch)


def downgrade() -> None:
    for name in ("extraction_stage", "extraction", "collection_document", "collection"):
        op.drop_table(name)
