"""Models, their workers, fair shares, forecasts, decisions and plots."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Double,
    Float,
    ForeignKey,
    Index,
    Integer,
    Numeric,
    SmallInteger,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from jobs.tables.base import Base, created_at


class Model(Base):
    """A model that batches may name. Prices are pico-units of currency per token, those of class normal."""

    __tablename__ = "model"
    __table_args__ = (Index("model_base_idx", "base", postgresql_where=text("base IS NOT NULL")),)

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
    # Of an adapter, the model whose workers run its lines, and its name at their servers: `jobs.served_adapters`.
    base: Mapped[str | None] = mapped_column(ForeignKey("model.name"))
    adapter: Mapped[str | None]
    has_own_prices: Mapped[bool] = mapped_column(server_default="true")  # false: its base's, as they change


class Scaling(Base):
    """An operator's settings of how many workers a model may have; without a row they are not computed."""

    __tablename__ = "scaling"
    __table_args__ = (
        CheckConstraint("min_workers >= 0 AND max_workers >= greatest(min_workers, 1)", name="workers"),
        CheckConstraint("startup_seconds >= 1", name="startup_seconds"),
        CheckConstraint("expected_rate > 0", name="expected_rate"),
        CheckConstraint(
            "(worker_hour_picos IS NULL) = (max_hour_picos IS NULL) AND worker_hour_picos > 0 "
            "AND max_hour_picos / worker_hour_picos >= greatest(min_workers, 1)",
            name="cost",
        ),
    )

    model: Mapped[str] = mapped_column(ForeignKey("model.name", ondelete="CASCADE"), primary_key=True)
    min_workers: Mapped[int] = mapped_column(Integer)
    max_workers: Mapped[int] = mapped_column(Integer)
    startup_seconds: Mapped[float] = mapped_column(Float)  # from the request for a worker until it computes
    expected_rate: Mapped[float | None] = mapped_column(Float)  # tokens a second of a worker, where none was measured
    # What a worker costs an hour, and what all may cost together, in pico-units of currency; null: no limit of money.
    worker_hour_picos: Mapped[int | None]
    max_hour_picos: Mapped[int | None]


class DueWork(Base):
    """The open work of a model with settings for scaling, or of workers of several models, at the last measurement of
    `jobs.forecasts`."""

    __tablename__ = "due_work"

    model: Mapped[str] = mapped_column(primary_key=True)
    measured_at: Mapped[datetime]
    deadlines: Mapped[list[float]] = mapped_column(ARRAY(Float))  # Unix seconds, ascending
    due_tokens: Mapped[list[float]] = mapped_column(ARRAY(Float))  # served until what is due by each has ended
    # The largest numbers of workers needed lately, and when: `jobs.scaling.rule.Peak`.
    peak_times: Mapped[list[float]] = mapped_column(ARRAY(Float))
    peaks: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    # By class, pairs of a deadline and what is served until all of the class that is due by it has ended.
    class_dues: Mapped[dict[str, Any]] = mapped_column(server_default="{}")


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
    # Of a day, in pico-units of currency, if its server is outside the house; null: it is of the house.
    spill_budget_picos: Mapped[Decimal | None] = mapped_column(Numeric)
    adapters: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")  # listed by its server
    # Of a worker that serves one of several models at a time: all of them, and by model why it cannot be loaded.
    may_serve: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")
    left_out: Mapped[dict[str, Any]] = mapped_column(server_default="{}")


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


class SpillDay(Base):
    """What servers outside the house may have been paid for a model on a day (UTC): `jobs.accounts.spill_days`."""

    __tablename__ = "spill_day"

    model: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(primary_key=True)
    # Payments and reservations, in pico-units of currency; the reservations of a worker that dies stay.
    used_picos: Mapped[Decimal] = mapped_column(Numeric, server_default="0")


class SpillLack(Base):
    """The least cost of a chunk's lines that did not fit into a day's budget: `jobs.accounts.spill_days`."""

    __tablename__ = "spill_lack"
    __table_args__ = (Index(None, "batch_id", "day", "picos"),)

    chunk_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    batch_id: Mapped[str]
    day: Mapped[date]
    fence: Mapped[int]  # of the chunk then
    picos: Mapped[Decimal] = mapped_column(Numeric)


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
    is_late: Mapped[bool] = mapped_column(server_default="false")  # the workers of the house will miss its deadline


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
