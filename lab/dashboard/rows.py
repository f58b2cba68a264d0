"""Fills a database with the rows of a service after a month: batches of several tenants, and everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson
from sqlalchemy import Engine, text

from engine.stats import EngineStats, Histogram, SizeHistogram, measured
from features.documents.extraction.course.stored_plan import StoredPlan
from jobs import partitions, served_models
from jobs.accounts import keys, tenants, window_budgets
from jobs.accounts.window_budgets import NewBudget
from jobs.database import sessions, transaction
from jobs.states import BudgetUnit, BudgetWindow
from lab.dashboard.statements import ROWS

MODELS = ("org/small-chat", "org/large-chat", "org/reasoner", "org/embedder")
_DAYS = 31
_RUNS = 30
"""Of each schedule."""
_EXTRACTIONS = 12
"""Of each tenant; two of them are in progress."""
_INDEXES = 12
"""Of each tenant; two of them are in progress."""
_SOURCE = {"store": "daily", "keys": "{date}/*.jsonl"}
_DEFINITION = {"steps": [{"name": "ask", "model": MODELS[0], "prompt": "Summarise {{ text }}", "source": _SOURCE}]}
_PLAN = StoredPlan(schema='{"type": "object", "properties": {"total": {"type": "number"}}}', model="demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The amounts of rows."""

    batches: int
    workers: int
    tenants: int
    lines: int
    """Of most batches."""
    largest: int
    """Lines of the one large batch that is in progress."""
    hours: int = 31 * 24
    """Of plots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The keys of the viewers."""

    operator_key: str
    tenant_keys: Sequence[str]


def fill(engine: Engine, sizes: Sizes) -> Filled:
    """Insert the rows into an empty database, and run VACUUM ANALYZE."""
    maker = sessions(engine)
    with transaction(maker) as session:
        for model in MODELS:
            served_models.put_model(session, model, f"/models/{model}", is_checked=True)
        today = datetime.now(UTC).date()
        for days in range(_DAYS):
            partitions.ensure_result_partition(session, today - timedelta(days=days))
        new_tenants = [tenants.create_tenant(session, f"team {number}") for number in range(sizes.tenants)]
        secrets = [keys.create_key(session, tenant.id)[1] for tenant in new_tenants]
        operator_key = keys.create_key(session, None)[1]
        monthly = NewBudget(unit=BudgetUnit.TOKENS, window=BudgetWindow.MONTH, limit=10**12)
        for tenant in new_tenants[::2]:
            window_budgets.set_budget(session, tenant.id, monthly)
        values = _values(sizes, [tenant.id for tenant in new_tenants])
        for statement in ROWS:
            session.execute(text(statement), values)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    return Filled(operator_key=operator_key, tenant_keys=secrets)


def beat(engine: Engine) -> None:
    """Let every worker that is not lost send a heartbeat, as each does every 2 s, and renew the forecasts."""
    with engine.begin() as connection:
        connection.execute(_BEAT)
        connection.execute(_FORECAST_ANEW)


def get_on(engine: Engine) -> None:
    """Answer a line of a tenth of the batches in progress, other ones at each call within 20 s."""
    with engine.begin() as connection:
        connection.execute(_GET_ON)


def _values(sizes: Sizes, tenant_ids: Sequence[str]) -> dict[str, object]:
    return {
        "tenants": list(tenant_ids),
        "models": list(MODELS),
        "model": MODELS[0],
        "batches": sizes.batches,
        "workers": sizes.workers,
        "lines": sizes.lines,
        "largest": sizes.largest,
        "hours": sizes.hours,
        "stats": orjson.dumps(_heartbeat()).decode(),
        "definition": orjson.dumps(_DEFINITION).decode(),
        "plan": _PLAN.to_bytes().decode(),
        "runs": _RUNS,
        "extractions": _EXTRACTIONS,
        "indexes": _INDEXES,
    }


def _heartbeat() -> dict[str, object]:
    """Return a worker's report on its engine, as long as a real one."""
    return {"slot_occupancy": 0.5, "kv_cache_usage_perc": 0.5} | {
        name: {"bounds": value.bounds, "counts": value.counts, "sum": value.sum}
        if isinstance(value, Histogram | SizeHistogram)
        else value + 12_345
        for name, value in measured(EngineStats())
    }


_BEAT = text("""
    UPDATE worker SET heartbeat_at = clock_timestamp(),
        engine_stats = engine_stats
            || jsonb_build_object('num_requests_running', CAST(extract(second FROM now()) AS integer))
    WHERE heartbeat_at > now() - interval '5 minutes'
""")
_GET_ON = text("""
    UPDATE batch SET num_completed = num_completed + 1, input_tokens = input_tokens + 200,
        output_tokens = output_tokens + 100
    WHERE state = 'in_progress' AND num_completed + num_failed < num_requests
        AND abs(hashtext(id)) % 10 = CAST(extract(epoch FROM now()) AS bigint) / 2 % 10
""")
_FORECAST_ANEW = text("UPDATE forecast SET made_at = now()")
