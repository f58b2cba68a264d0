"""Batches, and exact counts of inputs."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

from sqlalchemy import CheckConstraint, Computed, ForeignKey, Index, Numeric, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.states import (
    LIVE_BATCH_STATES,
    AskedPriority,
    BatchState,
    CountState,
    EngineChoice,
    InvalidLines,
    Priority,
    UncoveredLines,
)
from jobs.tables.base import Base, created_at, one_of

_IS_LIVE = one_of("state", LIVE_BATCH_STATES)


class Batch(Base):
    """One submitted job. Counters and tokens change only in the transaction that inserts the results they count."""

    __tablename__ = "batch"
    __table_args__ = (
        Index(None, "tenant_id", "created_at", "id"),
        Index(None, "created_at", "id"),
        Index(
            "batch_open_age_idx",
            "created_at",
            "id",
            postgresql_where=text(_IS_LIVE),
        ),
        Index(
            "batch_at_risk_idx",
            "expires_at",
            "id",
            postgresql_where=text(f"at_risk_at IS NOT NULL AND {_IS_LIVE}"),
        ),
        Index(
            "batch_live_idx",
            "state",
            postgresql_where=text(_IS_LIVE),
        ),
        Index("batch_expiry_idx", "expires_at", "id", postgresql_where=text("state IN ('validating','in_progress')")),
        Index("batch_answered_idx", "id", postgresql_where=text("state = 'in_progress' AND is_answered")),
        UniqueConstraint("tenant_id", "idempotency_key"),
        Index(
            "batch_open_idx",
            "tenant_id",
            postgresql_where=text(_IS_LIVE),
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
        Index("batch_deferred_idx", "deferred_until", postgresql_where=text("deferred_until IS NOT NULL")),
        Index("batch_run_idx", "run_id", postgresql_where=text("run_id IS NOT NULL")),
        CheckConstraint(one_of("state", BatchState), name="state"),
        CheckConstraint(one_of("priority", Priority), name="priority"),
        CheckConstraint(one_of("invalid_lines", InvalidLines), name="invalid_lines"),
        CheckConstraint(one_of("uncovered_lines", UncoveredLines), name="uncovered_lines"),
        CheckConstraint(one_of("engine_choice", EngineChoice), name="engine_choice"),
        {"postgresql_with": {"fillfactor": "70"}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenant.id"))
    input_file_id: Mapped[str] = mapped_column(ForeignKey("file.id"))
    endpoint: Mapped[str]
    model: Mapped[str | None]  # known after validation
    completion_window: Mapped[str]
    priority: Mapped[str] = mapped_column(server_default=Priority.NORMAL.value)
    invalid_lines: Mapped[str] = mapped_column(server_default=InvalidLines.FAIL.value)
    request_metadata: Mapped[dict[str, Any] | None] = mapped_column("metadata")
    output_expires_after_seconds: Mapped[int | None]
    idempotency_key: Mapped[str | None]
    fingerprint: Mapped[str]  # of the create call, to detect the client's retries without a key

    state: Mapped[str] = mapped_column(server_default=BatchState.VALIDATING.value)
    outcome: Mapped[str | None]  # the terminal state after finalizing
    errors: Mapped[list[dict[str, Any]] | None]
    num_unlisted_errors: Mapped[int] = mapped_column(server_default="0")
    hinted_at: Mapped[datetime | None]  # last hint to validate or finalise

    num_requests: Mapped[int] = mapped_column(server_default="0")
    num_completed: Mapped[int] = mapped_column(server_default="0")
    num_failed: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(server_default="0")
    cached_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    reserved_tokens: Mapped[int] = mapped_column(server_default="0")  # the rest of the reservation

    output_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))
    error_file_id: Mapped[str | None] = mapped_column(ForeignKey("file.id"))

    created_at: Mapped[datetime] = created_at()
    expires_at: Mapped[datetime]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    cost_picos: Mapped[Decimal] = mapped_column(Numeric, server_default="0")  # exact: `jobs.accounts.prices`
    # part of reserved_tokens: maximum usage of running lines
    covered_tokens: Mapped[int] = mapped_column(server_default="0")
    waits_for_tokens: Mapped[int | None]  # the least need of its waiting chunks; null: none waits
    uncovered_lines: Mapped[str] = mapped_column(server_default=UncoveredLines.WAIT.value)
    deleted_at: Mapped[datetime | None]  # no longer found; the ledger still references it
    results_deleted_at: Mapped[datetime | None]  # from then on its lines are not shown, and
    results_purged_at: Mapped[datetime | None]  # from then on they are gone
    rolled_up_at: Mapped[datetime | None]  # from then on its chunks are gone, and its ledger entries are one a day
    # Claim of the control worker that validates it or writes its files: `jobs.batches.claims`.
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    # For an index: one on the counters themselves would have to be updated at each flush.
    is_answered: Mapped[bool] = mapped_column(Computed("num_completed + num_failed >= num_requests", persisted=True))
    api_key_id: Mapped[str | None]  # that submitted it; null: none did
    worker_microseconds: Mapped[int] = mapped_column(server_default="0")  # sum over its ledger entries
    num_truncated: Mapped[int] = mapped_column(server_default="0")  # completed ones with an answer cut at a token limit
    retry_of: Mapped[str | None]  # the batch whose failed lines these are
    after_batch_id: Mapped[str | None]  # the batch that must complete before this one starts
    waits_for_picos: Mapped[Decimal | None] = mapped_column(Numeric)  # the same as waits_for_tokens, in money
    at_risk_at: Mapped[datetime | None]  # when its owner's webhooks were notified that it may miss its deadline
    cap_tokens: Mapped[int | None]  # the most that it may use: what its run has left; null: no cap
    cap_picos: Mapped[Decimal | None] = mapped_column(Numeric)  # the same in money
    trace_context: Mapped[str | None]  # W3C traceparent of the request that created it; null: not traced
    run_id: Mapped[str | None]  # the run that created it, possibly deleted by now; null: its owner did
    # The owner's input, where input_file_id is the version that a feature has filled: `jobs.hooks.Holder`.
    source_file_id: Mapped[str | None]
    input_missed_at: Mapped[datetime | None]  # when the object store was first found to lack its input
    # until then neither it nor its deferred chunks are claimed: `jobs.chunks.deferring`
    deferred_until: Mapped[datetime | None]
    num_computed: Mapped[int] = mapped_column(server_default="0")  # results that used tokens
    reading_microseconds: Mapped[int] = mapped_column(server_default="0")  # sum over its ledger entries
    # Set while it is put off because its tenant has used so many seconds of reading today: `jobs.accounts.reading`.
    reading_limit_seconds: Mapped[int | None]
    held_by: Mapped[str | None]  # what fills its lines first; until then it is not validated: `jobs.hooks.Holder`
    reasoning_tokens: Mapped[int] = mapped_column(server_default="0")  # tokens of thoughts among the output's
    # Whether lines may still be added to it, and it does not end before: `jobs.batches.growth.adding`.
    is_growing: Mapped[bool] = mapped_column(server_default="false")
    name: Mapped[str | None]  # its owner's, not unique; null: none was given, and its input file's is shown
    needs: Mapped[int] = mapped_column(server_default="0")  # what its lines need of an engine: `jobs.lines.needs.Need`
    engine_choice: Mapped[str] = mapped_column(server_default=EngineChoice.SAME.value)
    is_reproducible: Mapped[bool] = mapped_column(server_default="false")  # only engines that promise the same bits
    engine: Mapped[str | None]  # the kind that gave its first answer; null: none has
    engine_dtype: Mapped[str | None]  # that engine's
    adapter: Mapped[str | None]  # the name that its lines have, where its model is their base: `jobs.served_adapters`
    server_model: Mapped[str | None]  # the adapter's name at the servers
    num_spilled: Mapped[int] = mapped_column(server_default="0")  # lines answered by servers outside the house

    @property
    def named_model(self) -> str | None:
        """Return the model that its lines name."""
        return self.adapter or self.model


class InputSegment(Base):
    """Lines added to a live batch: an object of its own, until the batch ends and its input file has all lines."""

    __tablename__ = "input_segment"
    __table_args__ = (Index(None, "object_key"),)

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    first_line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # its number in the batch
    object_key: Mapped[str]
    size_bytes: Mapped[int]


class InputDigest(Base):
    """A line of a growing batch that later ones may be copies of; deleted when the batch ends."""

    __tablename__ = "input_digest"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    digest: Mapped[bytes] = mapped_column(primary_key=True)  # of its content but for the custom_id
    line_no: Mapped[int]


class InputCount(Base):
    """An input that workers count before it is submitted: see `jobs.batches.exact_counts`. Not billed."""

    KEPT: ClassVar = timedelta(days=1)
    """How long a count is kept, finished or not."""

    __tablename__ = "input_count"
    __table_args__ = (
        Index("input_count_open_idx", "model", postgresql_where=text("state = 'counting'")),
        Index(None, "tenant_id"),
        Index(None, "created_at"),
        CheckConstraint(one_of("state", CountState), name="state"),
        CheckConstraint(one_of("priority", AskedPriority), name="priority"),
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
    failure: Mapped[str | None]  # the reason, as a sentence
    created_at: Mapped[datetime] = created_at()
    next_line: Mapped[int] = mapped_column(server_default="0")
    next_byte: Mapped[int] = mapped_column(server_default="0")
    num_requests: Mapped[int] = mapped_column(server_default="0")  # of the lines before that one
    num_invalid: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(server_default="0")
    output_tokens: Mapped[int] = mapped_column(server_default="0")
    listed: Mapped[list[dict[str, Any]]] = mapped_column(server_default="[]")  # the first invalid lines
    claim_fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    claimed_until: Mapped[datetime | None]
    last_turn_at: Mapped[datetime | None]
    claimed_by: Mapped[str | None]  # owner of the claim
