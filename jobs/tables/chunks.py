"""Chunks (the unit of lease), results of lines, and the ledger."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Numeric,
    SmallInteger,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from jobs.states import ChunkState
from jobs.tables.base import Base, created_at, one_of


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
        Index("chunk_open_idx", "batch_id", "id", postgresql_where=text("state IN ('ready','leased')")),
        Index("chunk_waiting_idx", "batch_id", "waits_for_tokens", "id", postgresql_where=text("state = 'waiting'")),
        Index(
            "chunk_untried_idx",
            "batch_id", "waits_for_tokens", "id",
            postgresql_where=text("state = 'waiting' AND needed_tokens IS NULL"),
        ),
        Index("chunk_deferred_idx", "batch_id", postgresql_where=text("state = 'deferred'")),
        CheckConstraint(one_of("state", ChunkState), name="state"),
        {"postgresql_with": {"fillfactor": "70"}},
    )  # fmt: skip

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"))
    tenant_id: Mapped[str]  # with model, priority and expires_at: copied from the batch, for the ready index
    model: Mapped[str]
    priority: Mapped[str]
    expires_at: Mapped[datetime]
    first_line: Mapped[int]
    num_lines: Mapped[int]  # line numbers first_line … first_line + num_lines − 1, including blank ones
    num_requests: Mapped[int]  # lines that are not blank: as many results make the chunk done
    byte_start: Mapped[int]
    byte_end: Mapped[int]  # exclusive
    estimated_tokens: Mapped[int]  # for documents the expected reading milliseconds
    state: Mapped[str] = mapped_column(server_default=ChunkState.READY.value)
    fence: Mapped[int] = mapped_column(server_default="0")  # only grows
    losses: Mapped[int] = mapped_column(Integer, server_default="0")  # lost leases, without those given back
    lease_until: Mapped[datetime | None]
    worker_id: Mapped[str | None]
    hinted_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = created_at()
    started_fence: Mapped[int | None]  # under which its lines last went to an engine
    covered_tokens: Mapped[int] = mapped_column(server_default="0")  # part of its batch's: while it is leased
    waits_for_tokens: Mapped[int | None]  # budget room that it needs to continue: while it waits
    charged_priority: Mapped[str | None]  # the class whose share its last claim was charged to; null: its own
    needed_tokens: Mapped[int | None]  # minimum of its smallest line, as a worker found; null: unknown
    # The same as covered_, waits_for_ and needed_tokens in money, in pico-units of currency.
    covered_picos: Mapped[Decimal] = mapped_column(Numeric, server_default="0")
    waits_for_picos: Mapped[Decimal | None] = mapped_column(Numeric)
    needed_picos: Mapped[Decimal | None] = mapped_column(Numeric)
    copies: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))  # pairs of line numbers; null: none
    segment_key: Mapped[str | None]  # the object with its lines; null: the batch's input file
    needs: Mapped[int] = mapped_column(server_default="0")  # what its lines need of an engine: `jobs.lines.needs.Need`


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
    result_no: Mapped[int]  # 1, 2, 3 … in the order of arrival, assigned under the batch's row lock: the live cursor
    status_code: Mapped[int | None] = mapped_column(SmallInteger)  # None: no response, an error only
    is_error: Mapped[bool]  # selects the output or the error file
    input_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    line: Mapped[bytes]  # the complete line of the output or error file, UTF-8 JSON, no newline
    created_at: Mapped[datetime] = created_at()


class Checkpoint(Base):
    """Output tokens of a line that a draining worker gave back: the next worker of that model continues after them.

    Not a result.
    """

    __tablename__ = "checkpoint"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    line_no: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    token_ids: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    created_at: Mapped[datetime] = created_at()
    model_fingerprint: Mapped[str]  # of the model files that generated them


class Ledger(Base):
    """Usage entries, each the sum of the results that its own transaction inserted; append-only.

    Long after the end of a batch `jobs.retention.history` merges those of a day, under the key of the first.
    """

    __tablename__ = "ledger"
    __table_args__ = (
        UniqueConstraint("chunk_id", "fence", "flush_no"),
        Index(None, "batch_id"),
        Index(None, "tenant_id", "created_at"),
        Index(
            "ledger_wasted_idx",
            "created_at",
            postgresql_where=text("wasted_input_tokens > 0 OR wasted_output_tokens > 0"),
        ),
        Index("ledger_spill_idx", "created_at", postgresql_where=text("spill_picos IS NOT NULL")),
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
    created_at: Mapped[datetime] = created_at()
    # Tokens × prices: a whole number of pico-units of currency, which may exceed a bigint.
    cost_picos: Mapped[Decimal] = mapped_column(Numeric, server_default="0")
    input_price_picos: Mapped[int]  # the prices of this entry, per token
    output_price_picos: Mapped[int]
    num_entries: Mapped[int] = mapped_column(server_default="1")  # number of entries merged into this one
    worker_microseconds: Mapped[int] = mapped_column(server_default="0")  # its share of a worker's time
    cached_input_price_picos: Mapped[int | None]  # per cached token; null: as the others
    priority: Mapped[str]  # the class of these prices
    num_truncated: Mapped[int]  # results with an answer cut at a token limit
    reading_microseconds: Mapped[int] = mapped_column(server_default="0")  # document reading time
    reading_price_picos: Mapped[int] = mapped_column(server_default="0")  # per microsecond of it
    reasoning_tokens: Mapped[int] = mapped_column(server_default="0")  # tokens of thoughts among the output's
    # Tokens of a server's answers that were thrown away: paid by the operator, billed to nobody.
    wasted_input_tokens: Mapped[int] = mapped_column(server_default="0")
    wasted_output_tokens: Mapped[int] = mapped_column(server_default="0")
    # What a server outside the house was paid, in pico-units of currency; null: its lines stayed in the house.
    spill_picos: Mapped[Decimal | None] = mapped_column(Numeric)
