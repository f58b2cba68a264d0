"""Models, their workers, fair shares, forecasts, decisions and plots."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Double, Float, ForeignKey, Index, Integer, SmallInteger, func, text
from sqlalchemy.orm import Mapped, mapped_column

from jobs.tables.base import Base, created_at


class Model(Base):
    """A model that batches may name. Prices are pico-units of currency per token, those of class normal."""

    __tablename__ = "model"

    name: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]
    input_price_picos: Mapped[int] = mapped_column(server_default="0")
    output_price_picos: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = created_at()
    cached_input_price_picos: Mapped[int | None]  # per prompt token found in the prefix cache; null: as the others
    # Prices of the other classes, in per cent of these.
    urgent_price_percent: Mapped[int] = mapped_column(Integer, server_default="100")
    bulk_price_percent: Mapped[int] = mapped_column(Integer, server_default="100")
    checked_at: Mapped[datetime | None]  # when a worker first loaded it, or an operator checked it; null: never
    serves: Mapped[str] = mapped_column(server_default="generate")  # a LineKind
    embedding: Mapped[dict[str, Any] | None]  # how its vectors are computed, as reported by a worker with its files
    # its stored tokenizer, as reported by that worker: `jobs.storage.tokenizers`
    tokenizer: Mapped[dict[str, Any] | None]


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
    started_at: Mapped[datetime] = created_at()
    heartbeat_at: Mapped[datetime] = mapped_column(server_default=func.now())
    stopped_at: Mapped[datetime | None]
    draining_at: Mapped[datetime | None]  # since when an operator has drained it
    # By batch: lines in its engine, and tokens generated for unfinished lines.
    running_lines: Mapped[dict[str, Any]] = mapped_column(server_default="{}")
    engine: Mapped[str] = mapped_column(server_default="tokenmill")  # its kind
    engine_version: Mapped[str | None]
    engine_dtype: Mapped[str | None]
    meets: Mapped[int] = mapped_column(server_default="0")  # `jobs.lines.needs.Need`
    num_tokens: Mapped[int] = mapped_column(server_default="0")  # computed since it started
    speed: Mapped[dict[str, Any] | None]  # as measured by `jobs.forecasts`


class ServedEngine(Base):
    """An engine that has served a model, and what it was seen to do; outlives its workers."""

    __tablename__ = "served_engine"

    model: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[str] = mapped_column(primary_key=True)  # empty: it does not tell
    meets: Mapped[int]  # `jobs.lines.needs.Need`
    may_meet: Mapped[int]  # the same with what has not been seen either way
    findings: Mapped[dict[str, Any]] = mapped_column(server_default="{}")  # by capability
    probe_tokens: Mapped[int] = mapped_column(server_default="0")  # of all probes; no tenant's
    probed_at: Mapped[datetime | None]  # last; null: never
    due_at: Mapped[datetime | None]  # when it is probed next; null: never
    prober_id: Mapped[str | None]  # the worker that probes it
    probed_until: Mapped[datetime | None]
    seen_at: Mapped[datetime] = mapped_column(server_default=func.now())  # when a worker last registered it


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
    # Since when it may have ready chunks, or since its last claim; null: it has none. `jobs.chunks.queue_marks`.
    waiting_since: Mapped[datetime | None]
    marked_at: Mapped[datetime | None]  # when chunks last became ready


class QueueCount(Base):
    """Counts of the queue by `jobs.metrics`, in one row: readers count nothing themselves."""

    __tablename__ = "queue_count"
    __table_args__ = (CheckConstraint("id = 1", name="id"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="1")
    numbers: Mapped[dict[str, Any]]
    counted_at: Mapped[datetime]


class ServingRate(Base):
    """Speed of a model's workers at the last measurement of `jobs.forecasts`."""

    __tablename__ = "serving_rate"

    model: Mapped[str] = mapped_column(primary_key=True)
    tokens_per_second: Mapped[float | None] = mapped_column(Float)  # per worker; null: not measured yet
    token_ratio: Mapped[float] = mapped_column(Float)  # used ÷ estimated
    counters: Mapped[dict[str, Any]]  # `ledger_id`: the last ledger entry included
    is_saturated: Mapped[bool]  # chunks were waiting for a free worker
    measured_at: Mapped[datetime]


class Forecast(Base):
    """Forecast of a batch in progress by `jobs.forecasts`: all rows are replaced together. No batch depends on one."""

    __tablename__ = "forecast"

    batch_id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    seconds: Mapped[float | None] = mapped_column(Float)  # from made_at to its end; null: unknown
    waits_for: Mapped[str | None]
    made_at: Mapped[datetime] = created_at()
    earliest_seconds: Mapped[float | None] = mapped_column(Float)  # from made_at, as `seconds`
    latest_seconds: Mapped[float | None] = mapped_column(Float)
    told: Mapped[dict[str, Any] | None]  # forecasts made at parts of its work, to compare with its end


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


class PlotPoint(Base):
    """Usage, or backlog, in a minute, an hour or a day: `jobs.overview.plots`."""

    __tablename__ = "plot_point"
    __table_args__ = (Index(None, "seconds", "at"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    label: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(primary_key=True)  # empty: of no tenant
    seconds: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(primary_key=True)  # its beginning
    value: Mapped[float] = mapped_column(Double)


class PlotMark(Base):
    """The last ledger entry included in the points of plots, in one row."""

    __tablename__ = "plot_mark"
    __table_args__ = (CheckConstraint("id = 1", name="id"),)

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False, server_default="1")
    ledger_id: Mapped[int]
