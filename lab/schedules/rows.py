"""Tenants with stores, and their pipelines of one step, each with a schedule that is not due yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Engine, insert, text
from sqlalchemy.orm import Session

from features.pipelines import stores
from features.pipelines.tables import Pipeline, Schedule
from jobs.accounts import tenants
from jobs.database import sessions, transaction
from jobs.ids import new_id
from lab.chaos.stack import MODEL

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many rows of each kind there are."""

    schedules: int
    tenants: int
    rows: int
    """In the source of each run."""


def fill(engine: Engine, sizes: Sizes, *, folder: Path) -> None:
    """Insert the rows and write the sources; no schedule is due yet."""
    maker = sessions(engine)
    for number in range(sizes.tenants):
        with transaction(maker) as session:
            share = (sizes.schedules + number) // sizes.tenants
            _add_tenant(session, folder / f"tenant-{number}", share, num_rows=sizes.rows)
    with transaction(maker) as session:
        session.execute(text("ANALYZE pipeline, schedule, tenant, store"))


def _add_tenant(session: Session, folder: Path, num_schedules: int, *, num_rows: int) -> None:
    tenant = tenants.create_tenant(session, new_id("bench"))
    for name in ("documents", "results"):
        (folder / name).mkdir(parents=True)
        is_output = name == "results"
        stores.add_store(session, tenant.id, name, f"file://{folder / name}", options={}, is_writable=is_output)
    (folder / "documents" / "rows.jsonl").write_bytes(b"\n".join(_source(num_rows)))
    pipelines = [_pipeline(tenant.id, number) for number in range(num_schedules)]
    if pipelines:
        session.execute(insert(Pipeline), pipelines)
        session.execute(insert(Schedule), [_schedule(pipeline) for pipeline in pipelines])


def _source(num_rows: int) -> Iterator[bytes]:
    for number in range(num_rows):
        yield orjson.dumps({"id": number, "text": f"Visitor {number} liked the old town of Ghent best."})


def _pipeline(tenant_id: str, number: int) -> dict[str, Any]:
    """Return the row of a pipeline; each has a prompt of its own."""
    system = f"You write report {number} of {{{{ run.date }}}}."
    step = {
        "name": "ask",
        "source": {"store": "documents", "keys": "*.jsonl"},
        "prompt": f"# system:\n{system}\n# user:\nName the city: {{{{ text }}}}",
        "schema": _SCHEMA,
        "model": MODEL,
        "parameters": {"max_tokens": 16},
        "output": {"store": "results", "keys": "{pipeline}/{date}/part-{n}.jsonl"},
    }
    named = {"id": new_id("pipeline"), "tenant_id": tenant_id, "name": f"report-{number}"}
    return {**named, "definition": {"steps": [step]}}


def _schedule(pipeline: dict[str, Any]) -> dict[str, Any]:
    copied = {name: pipeline[name] for name in ("tenant_id", "name")}
    own = {"id": new_id("schedule"), "pipeline_id": pipeline["id"], "cron": "0 0 * * *", "time_zone": "UTC"}
    # the minute may have begun before the first look of the stack's dispatcher
    return {**copied, **own, "catch_up": "latest", "catch_up_seconds": 3600}
