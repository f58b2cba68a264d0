"""Every table, as SQLAlchemy declarative classes. Columns and constraints only; queries live in their own modules."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Computed,
    Date,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from jobs.states import (
    ASKED_CLASSES,
    BatchState,
    BudgetUnit,
    BudgetWindow,
    CatchUp,
    ChunkState,
    CountState,
    DeliveryState,
    InvalidLines,
    Overlap,
    Priority,
    RunKind,
    RunState,
    UncoveredLines,
    UploadState,
)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
            "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
            "pk": "%(table_name)s_pkey",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - the mapping is SQLAlchemy's own protocol
        datetime: DateTime(timezone=True),
        date: Date,
        str: Text,
        int: BigInteger,
        bytes: LargeBinary,
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB,
    }


def _one_of(column: str, values: Iterable[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


def _created_at() -> Mapped[datetime]:
    return mapped_column(server_default=func.now())


class Tenant(Base):
    """Owner of keys, files, batches and a budget. `weight` is its share of the GPUs against other tenants."""

    __tablename__ = "tenant"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint(_one_of("best_priority", ASKED_CLASSES), name="best_priority"),
        Index("tenant_never_urgent_idx", "id", postgresql_where=text("max_urgent_tokens = 0")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float] = mapped_column(Float, server_default="1")
    created_at: Mapped[datetime] = _created_at()
    # What `jobs.accounts.limits` holds it to; None: what the settings say.
    max_open_batches: Mapped[int | None]
    max_enqueued_tokens: Mapped[int | None]
    max_files: Mapped[int | None]
    max_stored_bytes: Mapped[int | None]
    max_requests_per_minute: Mapped[int | None]
    max_tokens_per_minute: Mapped[int | None]
    max_uploads: Mapped[int | None]
    max_downloads: Mapped[int | None]
    deleted_at: Mapped[datetime | None]  # its keys are revoked, and what it has goes as its batches end
    retention_days: Mapped[int | None] = mapped_column(Integer)  # of its results; null: the service's
    # The best class that its batches may ask for. The default is for rows from before there was such a right.
    best_priority: Mapped[str] = mapped_column(server_default=Priority.URGENT.value)
    max_urgent_tokens: Mapped[int | None]  # one of the limits above
    may_overflow: Mapped[bool] = mapped_column(server_default="false")  # batches beyond its token limit: class overflow


class ApiKey(Base):
    """A bearer key; only its SHA-256 is stored (keys are 256 random bits, so a slow hash would add nothing)."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), index=True)
    key_hash: Mapped[str] = mapped_column(unique=True)
    hint: Mapped[str]  # the first characters, for lists
    created_at: Mapped[datetime] = _created_at()
    revoked_at: Mapped[datetime | None]


class Model(Base):
    """A model that batches may name. Prices are micro-units of currency per million tokens, those of class normal."""

    __tablename__ = "model"

    name: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]
    input_price_micros: Mapped[int] = mapped_column(server_default="0")
    output_price_micros: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = _created_at()
    cached_input_price_micros: Mapped[int | None]  # of prompt tokens that the prefix cache had; null: as the others
    # Prices of the other classes, in per cent of these.
    urgent_price_percent: Mapped[int] = mapped_column(Integer, server_default="100")
    bulk_price_percent: Mapped[int] = mapped_column(Integer, server_default="100")
    checked_at: Mapped[datetime | None]  # when a worker first loaded it, or an operator looked at it; null: never


class File(Base):
    """One immutable object. The columns of the estimate are filled while an input file streams in."""

    __tablename__ = "file"
    __table_args__ = (
        Index(None, "tenant_id", "created_at", "id"),
        # For the sums of what a tenant keeps: read from the index alone.
        Index(
            "file_kept_idx",
            "tenant_id",
            postgresql_include=["size_bytes", "expires_at"],
            postgresql_where=text("deleted_at IS NULL"),
        ),
        # LEAST leaves nulls out: the moment from which the object is not needed, null where it stays.
        Index("file_purge_idx", text("LEAST(expires_at, deleted_at)"), postgresql_where=text("purged_at IS NULL")),
        Index(None, "object_key"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    purpose: Mapped[str]
    filename: Mapped[str]
    size_bytes: Mapped[int]
    object_key: Mapped[str]
    created_at: Mapped[datetime] = _created_at()
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    num_requests: Mapped[int | None]
    estimated_input_tokens: Mapped[int | None]
    estimated_output_tokens: Mapped[int | None]
    purged_at: Mapped[datetime | None]  # its object is gone from the store
    purge_again_at: Mapped[datetime | None]  # the store refused to delete its object: when to ask again


class Upload(Base):
    """A file that comes in parts: see `jobs.uploads`."""

    __tablename__ = "upload"
    __table_args__ = (
        Index("upload_pending_idx", "tenant_id", postgresql_where=text("state = 'pending'")),
        Index("upload_expiry_idx", "expires_at", postgresql_where=text("state = 'pending'")),
        Index("upload_ended_idx", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        CheckConstraint(_one_of("state", UploadState), name="state"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    state: Mapped[str] = mapped_column(server_default=UploadState.PENDING.value)
    purpose: Mapped[str]
    filename: Mapped[str]
    mime_type: Mapped[str]
    size_bytes: Mapped[int]  # of the whole file, as its owner says
    file_expires_after_seconds: Mapped[int | None]
    created_at: Mapped[datetime] = _created_at()
    expires_at: Mapped[datetime]  # each part moves it
    ended_at: Mapped[datetime | None]
    part_ids: Mapped[list[str] | None] = mapped_column(ARRAY(Text))  # that were made the file, in their order
    file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    # Who makes the file of its parts, and until when.
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_until: Mapped[datetime | None]


class UploadPart(Base):
    """An object that is a part of a file to be; its row goes with its object, or when a file has that."""

    __tablename__ = "upload_part"
    __table_args__ = (
        Index(None, "upload_id"),
        Index(
            "upload_part_kept_idx",
            "tenant_id",
            postgresql_include=["size_bytes"],
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index("upload_part_purge_idx", "deleted_at", postgresql_where=text("deleted_at IS NOT NULL")),
        Index(None, "object_key"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    upload_id: Mapped[str] = mapped_column(ForeignKey("upload.id"))
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    size_bytes: Mapped[int]
    object_key: Mapped[str]
    md5: Mapped[str]  # of its bytes, in hexadecimal digits
    created_at: Mapped[datetime] = _created_at()
    deleted_at: Mapped[datetime | None]  # nobody needs it any more
    purge_again_at: Mapped[datetime | None]  # the store refused to delete its object: when to ask again
    # Of a batch's input: what `jobs.uploads.part_counts` counted, without the lines at its two ends.
    head_bytes: Mapped[int]
    tail_bytes: Mapped[int]
    num_requests: Mapped[int]
    estimated_input_tokens: Mapped[int]
    estimated_output_tokens: Mapped[int]


class Batch(Base):
    """One submitted job. Counters and tokens change only in the transaction that inserts the results they count."""

    __tablename__ = "batch"
    __table_args__ = (
        Index(None, "tenant_id", "created_at", "id"),
        Index(
            "batch_live_idx",
            "state",
            postgresql_where=text("state IN ('validating','in_progress','finalizing','cancelling')"),
        ),
        Index("batch_expiry_idx", "expires_at", "id", postgresql_where=text("state IN ('validating','in_progress')")),
        Index("batch_answered_idx", "id", postgresql_where=text("state = 'in_progress' AND is_answered")),
        UniqueConstraint("tenant_id", "idempotency_key"),
        Index(
            "batch_open_idx",
            "tenant_id",
            postgresql_where=text("state IN ('validating','in_progress','finalizing','cancelling')"),
        ),
        Index("batch_fingerprint_idx", "tenant_id", "fingerprint", "created_at"),
        Index(None, "input_file_id"),
        Index(None, "output_file_id", postgresql_where=text("output_file_id IS NOT NULL")),
        Index(None, "error_file_id", postgresql_where=text("error_file_id IS NOT NULL")),
        Index("batch_results_kept_idx", "created_at", postgresql_where=text("results_deleted_at IS NULL")),
        Index(
            "batch_results_purge_idx",
            "results_deleted_at",
            postgresql_where=text("results_purged_at IS NULL AND results_deleted_at IS NOT NULL"),
        ),
        Index("batch_waiting_idx", "expires_at", "id", postgresql_where=text("waits_for_tokens IS NOT NULL")),
        Index(
            "batch_after_idx",
            "after_batch_id",
            postgresql_where=text("state = 'validating' AND after_batch_id IS NOT NULL"),
        ),
        Index("batch_roll_up_idx", "created_at", "id", postgresql_where=text("rolled_up_at IS NULL")),
        CheckConstraint(_one_of("state", BatchState), name="state"),
        CheckConstraint(_one_of("priority", Priority), name="priority"),
        CheckConstraint(_one_of("invalid_lines", InvalidLines), name="invalid_lines"),
        CheckConstraint(_one_of("uncovered_lines", UncoveredLines), name="uncovered_lines"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    input_file_id: Mapped[str] = mapped_column(ForeignKey("file.id"))
    endpoint: Mapped[str]
    model: Mapped[str | None]  # known once validated
    completion_window: Mapped[str]
    priority: Mapped[str] = mapped_column(server_default=Priority.NORMAL.value)
    invalid_lines: Mapped[str] = mapped_column(server_default=InvalidLines.FAIL.value)
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    output_expires_after_seconds: Mapped[int | None]
    idempotency_key: Mapped[str | None]
    fingerprint: Mapped[str]  # of the create call, to recognise the client's key-less retries

    state: Mapped[str] = mapped_column(server_default=BatchState.VALIDATING.value)
    outcome: Mapped[str | None]  # the terminal state that finalizing leads to
    errors: Mapped[list[dict[str, Any]] | None]
    num_unlisted_errors: Mapped[int] = mapped_column(server_default="0")
    hinted_at: Mapped[datetime | None]  # last hint to validate or finalise

    num_requests: Mapped[int] = mapped_column(server_default="0")
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(server_default="0")
    cached_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    cost_micros: Mapped[int] = mapped_column(server_default="0")  # billed by a release that rounded each ledger entry
    reserved_tokens: Mapped[int] = mapped_column(server_default="0")  # what is left of the reservation

    output_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    error_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))

    created_at: Mapped[datetime] = _created_at()
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    cost_picos: Mapped[Decimal] = mapped_column(Numeric, server_default="0")  # exact; `jobs.accounts.prices` adds both
    covered_tokens: Mapped[int] = mapped_column(server_default="0")  # of reserved_tokens: what running lines may use
    waits_for_tokens: Mapped[int | None]  # the least that any of its waiting chunks needs; null: none waits
    uncovered_lines: Mapped[str] = mapped_column(server_default=UncoveredLines.WAIT.value)
    deleted_at: Mapped[datetime | None]  # nobody finds it any more; the ledger still names it
    results_deleted_at: Mapped[datetime | None]  # from then on its lines are not shown, and
    results_purged_at: Mapped[datetime | None]  # from then on they are gone
    rolled_up_at: Mapped[datetime | None]  # from then on its chunks are gone, and its ledger entries are one a day
    # Who validates it or writes its files: `jobs.batches.claims`.
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    # For an index: one on the counters themselves would have to follow each flush.
    is_answered: Mapped[bool] = mapped_column(Computed("num_completed + num_failed >= num_requests", persisted=True))
    api_key_id: Mapped[str | None]  # that submitted it; null: accepted by a release that did not note it
    worker_microseconds: Mapped[int] = mapped_column(server_default="0")  # what its ledger entries have together
    num_truncated: Mapped[int] = mapped_column(server_default="0")  # of the completed: an answer ended by a limit
    retry_of: Mapped[str | None]  # the batch whose failed lines these are
    after_batch_id: Mapped[str | None]  # the batch that has to be completed before this one starts
    waits_for_picos: Mapped[Decimal | None] = mapped_column(Numeric)  # of waits_for_tokens: the same of money
    at_risk_at: Mapped[datetime | None]  # when its owner's webhooks were told that it may miss its deadline


class InputCount(Base):
    """An input that workers count before it is submitted: see `jobs.batches.exact_counts`. Nothing of it is billed."""

    __tablename__ = "input_count"
    __table_args__ = (
        Index("input_count_open_idx", "model", postgresql_where=text("state = 'counting'")),
        Index(None, "tenant_id"),
        Index(None, "created_at"),
        CheckConstraint(_one_of("state", CountState), name="state"),
        CheckConstraint(_one_of("priority", ASKED_CLASSES), name="priority"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    input_file_id: Mapped[str] = mapped_column(ForeignKey("file.id"))
    endpoint: Mapped[str]
    model: Mapped[str]
    priority: Mapped[str]
    completion_window: Mapped[str]
    state: Mapped[str] = mapped_column(server_default=CountState.COUNTING.value)
    failure: Mapped[str | None]  # why it failed, as a sentence
    created_at: Mapped[datetime] = _created_at()
    next_line: Mapped[int] = mapped_column(server_default="0")
    next_byte: Mapped[int] = mapped_column(server_default="0")
    num_requests: Mapped[int] = mapped_column(server_default="0")  # of the lines before that one
    num_invalid: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    listed: Mapped[list[dict[str, Any]]] = mapped_column(server_default="[]")  # the first bad lines
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_until: Mapped[datetime | None]
    last_turn_at: Mapped[datetime | None]


class Chunk(Base):
    """Consecutive lines of one batch: the unit of lease.

    `lease_until` is not indexed and the table keeps free space in its pages, so heartbeats are HOT updates.
    """

    __tablename__ = "chunk"
    __table_args__ = (
        Index(
            "chunk_ready_idx",
            "model", "priority", "tenant_id", "expires_at", "id",
            postgresql_where=text("state = 'ready'"),
        ),
        Index("chunk_leased_idx", "id", postgresql_where=text("state = 'leased'")),
        Index("chunk_hinted_idx", "model", postgresql_where=text("state = 'ready' AND hinted_at IS NOT NULL")),
        Index(None, "batch_id"),
        Index("chunk_open_idx", "batch_id", postgresql_where=text("state IN ('ready','leased')")),
        Index("chunk_waiting_idx", "batch_id", "waits_for_tokens", "id", postgresql_where=text("state = 'waiting'")),
        Index(
            "chunk_untried_idx",
            "batch_id", "waits_for_tokens", "id",
            postgresql_where=text("state = 'waiting' AND needed_tokens IS NULL"),
        ),
        CheckConstraint(_one_of("state", ChunkState), name="state"),
        {"postgresql_with": {"fillfactor": "70"}},
    )  # fmt: skip

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"))
    tenant_id: Mapped[str]  # with model, priority and expires_at: copied from the batch, for the ready index
    model: Mapped[str]
    priority: Mapped[str]
    expires_at: Mapped[datetime]
    first_line: Mapped[int]
    num_lines: Mapped[int]  # line numbers first_line … first_line + num_lines − 1, blank ones included
    num_requests: Mapped[int]  # those that are not blank: as many results make the chunk done
    byte_start: Mapped[int]
    byte_end: Mapped[int]  # exclusive
    estimated_tokens: Mapped[int]
    state: Mapped[str] = mapped_column(server_default=ChunkState.READY.value)
    fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    losses: Mapped[int] = mapped_column(Integer, server_default="0")  # leases lost, never those given back
    lease_until: Mapped[datetime | None]
    worker_id: Mapped[str | None]
    hinted_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = _created_at()
    started_fence: Mapped[int | None]  # under which lines of it last went to an engine
    covered_tokens: Mapped[int] = mapped_column(server_default="0")  # of its batch's: while it is leased
    waits_for_tokens: Mapped[int | None]  # room in the budget that it needs to go on: while it waits
    charged_priority: Mapped[str | None]  # the class whose share its last claim was charged to; null: its own
    needed_tokens: Mapped[int | None]  # what its smallest line needs at least, found out by a worker; null: by nobody
    # Of covered_, waits_for_ and needed_tokens the same of money, in pico-units of currency.
    covered_picos: Mapped[Decimal] = mapped_column(Numeric, server_default="0")
    waits_for_picos: Mapped[Decimal | None] = mapped_column(Numeric)
    needed_picos: Mapped[Decimal | None] = mapped_column(Numeric)
    copies: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))  # line numbers in pairs; null: it has none


class Result(Base):
    """The final answer of one line; append-only. Partitioned by the day of the batch: retention is DROP PARTITION."""

    __tablename__ = "result"
    __table_args__ = (
        UniqueConstraint("batch_day", "batch_id", "result_no"),
        {"postgresql_partition_by": "RANGE (batch_day)"},
    )

    batch_day: Mapped[date] = mapped_column(primary_key=True)
    batch_id: Mapped[str] = mapped_column(primary_key=True)
    line_no: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    result_no: Mapped[int]  # 1, 2, 3 … in the order of arrival, given out under the batch's row lock: the live cursor
    status_code: Mapped[int | None] = mapped_column(SmallInteger)  # None: no response, an error only
    is_error: Mapped[bool]  # which of the two files it belongs to
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    line: Mapped[bytes]  # the whole line of the output or error file, UTF-8 JSON, no newline
    created_at: Mapped[datetime] = _created_at()


class Checkpoint(Base):
    """Output tokens of a line that a draining worker gave back: the next worker of that model goes on after them.

    No result.
    """

    __tablename__ = "checkpoint"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    line_no: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    token_ids: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    created_at: Mapped[datetime] = _created_at()
    model_fingerprint: Mapped[str]  # of the model files that generated them


class Ledger(Base):
    """Usage entries, each summed from the result rows its own transaction inserted; only added to.

    Long after the end of a batch `jobs.history` makes those of a day one; its key is then that of the first of them.
    """

    __tablename__ = "ledger"
    __table_args__ = (
        UniqueConstraint("chunk_id", "fence", "flush_no"),
        Index(None, "batch_id"),
        Index(None, "tenant_id", "created_at"),
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"))
    chunk_id: Mapped[int]
    fence: Mapped[int]
    flush_no: Mapped[int]
    model: Mapped[str]
    num_results: Mapped[int]
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    cost_micros: Mapped[int] = mapped_column(server_default="0")  # what a release that rounded billed
    created_at: Mapped[datetime] = _created_at()
    # Tokens × prices: a whole number of pico-units of currency, that may be more than a bigint holds.
    cost_picos: Mapped[Decimal] = mapped_column(Numeric, server_default="0")
    input_price_micros: Mapped[int | None]  # the prices of this entry; null where a release that rounded wrote it
    output_price_micros: Mapped[int | None]
    num_entries: Mapped[int] = mapped_column(server_default="1")  # that this one is the sum of
    worker_microseconds: Mapped[int] = mapped_column(server_default="0")  # its share of a worker's time
    cached_input_price_micros: Mapped[int | None]  # of the cached tokens; null: as the others
    priority: Mapped[str | None]  # the class whose prices these are; null: of a release whose classes cost the same


class Budget(Base):
    """Tokens a tenant may use. `limit_tokens` None means unlimited. limit − spent − reserved is available.

    spent + reserved is never above the larger of limit and `committed_tokens`. A constraint will say so once no release
    runs any more that settles without cover.
    """

    __tablename__ = "budget"
    __table_args__ = (
        CheckConstraint("reserved_tokens >= 0", name="reserved"),
        CheckConstraint("spent_tokens >= 0", name="spent"),
        {"postgresql_with": {"fillfactor": "50"}},
    )

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    limit_tokens: Mapped[int | None]
    reserved_tokens: Mapped[int] = mapped_column(server_default="0")
    spent_tokens: Mapped[int] = mapped_column(server_default="0")
    refused_lines: Mapped[int] = mapped_column(server_default="0")  # bad ones, and
    refused_bytes: Mapped[int] = mapped_column(server_default="0")  # their sizes: read without a price
    committed_tokens: Mapped[int] = mapped_column(server_default="0")  # spent and reserved before this limit held
    num_window_budgets: Mapped[int] = mapped_column(Integer, server_default="0")  # of the tenant and its keys
    overflow_spent_tokens: Mapped[int] = mapped_column(server_default="0")  # in class overflow, beside the limit


class WindowBudget(Base):
    """What a tenant, or one of its keys, may use in each day or month, or ever: `jobs.accounts.window_budgets`.

    Amounts are tokens, or pico-units of currency.
    """

    __tablename__ = "window_budget"
    __table_args__ = (
        Index(
            "window_budget_scope_idx",
            "tenant_id", text("coalesce(api_key_id, '')"), "unit", "window_kind",
            unique=True,
        ),
        CheckConstraint(_one_of("unit", BudgetUnit), name="unit"),
        CheckConstraint(_one_of("window_kind", BudgetWindow), name="window_kind"),
        {"postgresql_with": {"fillfactor": "50"}},
    )  # fmt: skip

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    api_key_id: Mapped[str | None] = mapped_column(ForeignKey("api_key.id"))  # null: all of the tenant's
    unit: Mapped[str]
    window_kind: Mapped[str]
    time_zone: Mapped[str]
    limit_amount: Mapped[Decimal] = mapped_column(Numeric)
    warn_percent: Mapped[int | None] = mapped_column(Integer)
    window_start: Mapped[datetime | None]  # both null: the window has no beginning and no end
    window_end: Mapped[datetime | None]
    spent_amount: Mapped[Decimal] = mapped_column(Numeric, server_default="0")  # in this window
    committed_amount: Mapped[Decimal] = mapped_column(Numeric, server_default="0")  # before this limit held
    warned_at: Mapped[datetime | None]  # in this window
    created_at: Mapped[datetime] = _created_at()


class FairShare(Base):
    """Virtual time of a tenant in one model's priority class: tokens served ÷ weight (start-time fair queueing).

    Each model is its own server with its own clock, because its workers serve nothing else.
    """

    __tablename__ = "fair_share"
    __table_args__ = (
        Index(
            "fair_share_turn_idx",
            "model", "priority", "virtual_time", "tenant_id",
            postgresql_where=text("waiting_since IS NOT NULL"),
        ),
        Index(
            "fair_share_age_idx",
            "model", "priority", "waiting_since",
            postgresql_where=text("waiting_since IS NOT NULL"),
        ),
    )  # fmt: skip

    model: Mapped[str] = mapped_column(primary_key=True)
    priority: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"), primary_key=True)
    virtual_time: Mapped[float] = mapped_column(Float, server_default="0")
    served_at: Mapped[datetime | None]  # last claim; ageing counts from here
    # Since when it may have ready chunks, or since its last claim; null: it has none. `jobs.chunks.ready_queues`.
    waiting_since: Mapped[datetime | None] = mapped_column(server_default=func.now())
    marked_at: Mapped[datetime | None]  # when chunks last became ready


class Pipeline(Base):
    """What a run does, as steps: see `jobs.pipelines`. A run keeps the definition that it began with."""

    __tablename__ = "pipeline"
    __table_args__ = (
        Index("pipeline_name_idx", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
        Index(None, "tenant_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    definition: Mapped[dict[str, Any]]
    version: Mapped[int] = mapped_column(server_default="1")  # of the definition; only grows
    api_key_id: Mapped[str | None]  # that gave the definition: its budgets are charged
    created_at: Mapped[datetime] = _created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Schedule(Base):
    """When a pipeline runs. Whoever moves `next_at` on inserts the runs up to it in the same transaction."""

    __tablename__ = "schedule"
    __table_args__ = (
        Index("schedule_name_idx", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
        Index(None, "tenant_id", "created_at", "id"),
        Index(
            "schedule_due_idx",
            "due_at",
            postgresql_where=text("due_at IS NOT NULL AND paused_at IS NULL AND deleted_at IS NULL"),
        ),
        CheckConstraint(_one_of("overlap", Overlap), name="overlap"),
        CheckConstraint(_one_of("catch_up", CatchUp), name="catch_up"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"), index=True)
    name: Mapped[str]
    cron: Mapped[str]
    time_zone: Mapped[str]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    jitter_seconds: Mapped[int] = mapped_column(Integer, server_default="0")
    overlap: Mapped[str] = mapped_column(server_default=Overlap.SKIP.value)
    catch_up: Mapped[str] = mapped_column(server_default=CatchUp.LATEST.value)
    catch_up_seconds: Mapped[int]
    max_failures: Mapped[int | None] = mapped_column(Integer)  # in a row, which pause it; null: none do
    next_at: Mapped[datetime | None]  # `scheduled_for` of its next run; null: there is none any more
    due_at: Mapped[datetime | None]  # next_at and its jitter
    paused_at: Mapped[datetime | None]
    pause_reason: Mapped[str | None]  # null: somebody paused it
    num_failures: Mapped[int] = mapped_column(Integer, server_default="0")  # in a row
    num_skipped: Mapped[int] = mapped_column(Integer, server_default="0")  # in a row
    created_at: Mapped[datetime] = _created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Run(Base):
    """One run of a pipeline."""

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("schedule_id", "scheduled_for", "kind", name="run_once_key"),
        UniqueConstraint("tenant_id", "idempotency_key"),
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "pipeline_id", "created_at", "id"),
        Index(
            "run_open_idx",
            "pipeline_id", "scheduled_for", "id",
            postgresql_where=text("state IN ('queued','running','cancelling')"),
        ),
        # One at a time: what is new since the last success would be taken twice.
        Index(
            "run_under_way_idx",
            "pipeline_id",
            unique=True,
            postgresql_where=text("state IN ('running','cancelling')"),
        ),
        CheckConstraint(_one_of("state", RunState), name="state"),
        CheckConstraint(_one_of("kind", RunKind), name="kind"),
        {"postgresql_with": {"fillfactor": "70"}},
    )  # fmt: skip

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"))
    schedule_id: Mapped[str | None] = mapped_column(ForeignKey("schedule.id"))
    kind: Mapped[str]
    scheduled_for: Mapped[datetime]
    interval_start: Mapped[datetime]
    interval_end: Mapped[datetime]
    state: Mapped[str] = mapped_column(server_default=RunState.QUEUED.value)
    reason: Mapped[str | None]  # of its end, or of its wait
    num_missed: Mapped[int] = mapped_column(Integer, server_default="1")  # runs that a skipped one stands for
    definition: Mapped[dict[str, Any] | None]  # the pipeline's when it began; null: it has not begun
    api_key_id: Mapped[str | None]  # whose budgets its batches are charged to
    idempotency_key: Mapped[str | None]
    created_at: Mapped[datetime] = _created_at()
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    # Who is at it: `jobs.pipelines.claims`.
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    look_at: Mapped[datetime | None]  # nobody needs to look at it before
    num_tries: Mapped[int] = mapped_column(Integer, server_default="0")  # of what it does now, that went wrong


class RunStep(Base):
    """How far a run is with one of its steps; each column is written once, by the transaction that did it."""

    __tablename__ = "run_step"
    __table_args__ = (Index(None, "batch_id", postgresql_where=text("batch_id IS NOT NULL")),)

    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    step_no: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str]
    rows_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))  # its rows, as they were read
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batch.id"))  # null: none of its rows became a line
    num_rows: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")  # rows without an answer
    prepared_at: Mapped[datetime | None]  # its rows and its batch are named
    published: Mapped[list[dict[str, Any]] | None]  # the files of its output, once they are there
    done_at: Mapped[datetime | None]


class DatasetFile(Base):
    """A file of a store that a run took in, as it was: what is new since the last success is not among these."""

    __tablename__ = "dataset_file"
    __table_args__ = (Index(None, "run_id"),)

    pipeline_id: Mapped[str] = mapped_column(ForeignKey("pipeline.id"), primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str] = mapped_column(primary_key=True)
    size_bytes: Mapped[int]
    run_id: Mapped[str] = mapped_column(ForeignKey("run.id"))  # the last one that took it
    done_at: Mapped[datetime | None]  # a run that took it succeeded


class Store(Base):
    """A folder or bucket that an operator has registered for a tenant: its pipelines reach no other."""

    __tablename__ = "store"
    __table_args__ = (
        Index("store_name_idx", "tenant_id", "name", unique=True, postgresql_where=text("deleted_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    url: Mapped[str]
    options: Mapped[dict[str, Any]]  # credentials among them: shown to nobody
    is_writable: Mapped[bool]
    created_at: Mapped[datetime] = _created_at()
    deleted_at: Mapped[datetime | None]


class Deletion(Base):
    """What was deleted, when and by whom; append-only, and it outlives its subject."""

    __tablename__ = "deletion"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    kind: Mapped[str]
    subject_id: Mapped[str] = mapped_column(index=True)
    tenant_id: Mapped[str | None]  # null: what many of them had
    deleted_by: Mapped[str]  # id of an API key, or one of `jobs.deletions`
    deleted_at: Mapped[datetime] = _created_at()


class Chore(Base):
    """Work that comes round again and that one process does for all; see `jobs.chores`."""

    __tablename__ = "chore"

    name: Mapped[str] = mapped_column(primary_key=True)
    due_at: Mapped[datetime]


class QueueCount(Base):
    """What `jobs.metrics` counted of the queue, in one row: whoever asks for it counts nothing."""

    __tablename__ = "queue_count"
    __table_args__ = (CheckConstraint("id = 1", name="id"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="1")
    numbers: Mapped[dict[str, Any]]
    counted_at: Mapped[datetime]


class ServingRate(Base):
    """How fast the workers of a model were when `jobs.forecasts` looked at them last."""

    __tablename__ = "serving_rate"

    model: Mapped[str] = mapped_column(primary_key=True)
    tokens_per_second: Mapped[float | None] = mapped_column(Float)  # of one worker; null: not measured yet
    token_ratio: Mapped[float] = mapped_column(Float)  # used ÷ estimated
    counters: Mapped[dict[str, Any]]  # `ledger_id`: the last ledger entry that was looked at
    is_saturated: Mapped[bool]  # chunks waited then for a free worker
    measured_at: Mapped[datetime]


class Forecast(Base):
    """What `jobs.forecasts` expects of a batch in progress: all rows are made anew, together. No batch needs one."""

    __tablename__ = "forecast"

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    seconds: Mapped[float | None] = mapped_column(Float)  # from made_at to its end; null: nobody knows
    waits_for: Mapped[str | None]
    made_at: Mapped[datetime] = _created_at()
    running_lines: Mapped[int | None] = mapped_column(Integer)


class Decision(Base):
    """What was decided about a batch, and how often: see `jobs.decisions`."""

    __tablename__ = "decision"
    __table_args__ = (
        Index("decision_last_at_idx", "last_at", postgresql_using="brin"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)  # a worker's id; empty: none
    num: Mapped[int]
    detail: Mapped[str | None]  # of the last time
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]


class Worker(Base):
    """A live GPU worker: its heartbeat is its liveness."""

    __tablename__ = "worker"
    __table_args__ = (Index("worker_live_idx", "model", postgresql_where=text("stopped_at IS NULL")),)

    id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str]
    hostname: Mapped[str]
    pid: Mapped[int] = mapped_column(Integer)
    max_chunks: Mapped[int] = mapped_column(Integer)
    max_model_len: Mapped[int] = mapped_column(Integer)
    engine_stats: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime] = _created_at()
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=func.now())
    stopped_at: Mapped[datetime | None]


class WebhookEndpoint(Base):
    """A URL that is told of a tenant's events; see `jobs.webhooks`."""

    __tablename__ = "webhook_endpoint"
    __table_args__ = (Index(None, "tenant_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    url: Mapped[str]
    event_types: Mapped[list[str]] = mapped_column(ARRAY(Text))
    secret: Mapped[str]  # as it is: requests are signed with it
    old_secret: Mapped[str | None]  # also signed with, until
    old_secret_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = _created_at()
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())  # its configuration or secret
    disabled_at: Mapped[datetime | None]
    disabled_reason: Mapped[str | None]
    failing_since: Mapped[datetime | None]  # the first failure after the last success


class WebhookDelivery(Base):
    """One event for one endpoint: what is to be sent, and what came of it. `id` and `data` of the event are its own.

    `tenant_id` names no row: an event may be noted while its tenant's row is locked.
    """

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index(None, "endpoint_id", "created_at", "id"),
        Index("webhook_delivery_due_idx", "tenant_id", "due_at", postgresql_where=text("state = 'pending'")),
        Index("webhook_delivery_ended_idx", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        CheckConstraint(_one_of("state", DeliveryState), name="state"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    endpoint_id: Mapped[str] = mapped_column(ForeignKey("webhook_endpoint.id", ondelete="CASCADE"))
    tenant_id: Mapped[str]
    event_id: Mapped[str]
    event_type: Mapped[str]
    event_data: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(server_default=DeliveryState.PENDING.value)
    created_at: Mapped[datetime] = _created_at()
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())  # while it waits; claimed: when it is given up
    fence: Mapped[int] = mapped_column(server_default="0")  # of the last claim; only grows
    num_tries: Mapped[int] = mapped_column(Integer, server_default="0")  # since it was noted or replayed
    ended_at: Mapped[datetime | None]
    problem: Mapped[str | None]  # why it was given up without another try


class WebhookAttempt(Base):
    """One request of a delivery, and its answer."""

    __tablename__ = "webhook_attempt"

    delivery_id: Mapped[str] = mapped_column(ForeignKey("webhook_delivery.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # the claim's fence
    started_at: Mapped[datetime]
    milliseconds: Mapped[int]
    status_code: Mapped[int | None] = mapped_column(Integer)  # null: no answer
    answer: Mapped[str | None]  # the first characters of its body
    error: Mapped[str | None]  # why there is none
