"""The engines that have served a model, and what each was seen to do: rows that outlive workers.

An engine is probed by one of its workers at a time: `claim_probe`, then `record`. What is known of a version stays
known when its last worker is gone, so that a batch is not refused because a worker is being restarted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Text, cast, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import QueryableAttribute, Session

from jobs.engines.engine import Known, ServingEngine
from jobs.engines.names import OWN
from jobs.lines.needs import Need
from jobs.tables import Model, ServedEngine

KEPT_FOR = timedelta(days=30)
"""How long an engine is remembered that no worker has registered since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The outcome of probes."""

    meets: Need
    may_meet: Need
    findings: Mapping[str, Any]
    """By capability: what was seen, as JSON."""
    num_tokens: int
    again: timedelta
    """After which time to probe next."""


def note(session: Session, model: str, engine: ServingEngine, *, may_meet: Need | None = None) -> None:
    """Register an engine of a model, as a worker starts it; what was seen of it before stays."""
    values = {
        **_key(model, engine),
        "meets": int(engine.meets),
        "may_meet": int(engine.meets if may_meet is None else may_meet),
        "is_told": engine.is_own,
    }
    session.execute(_NOTE, values)


def of_model(session: Session, model: str) -> Sequence[Known]:
    """Return the engines that have served a model."""
    base = session.scalar(select(Model.base).where(Model.name == model))
    return by_model(session, model=base or model).get(model, [])


def by_model(session: Session, *, model: str | None = None) -> dict[str, list[Known]]:
    """Return the engines that have served each model, or one; adapters have their base's."""
    query = select(ServedEngine, adapters_of(ServedEngine.model), adapters_of(ServedEngine.model, is_folder=True))
    query = query.order_by(ServedEngine.model, ServedEngine.kind, ServedEngine.version)
    engines: dict[str, list[Known]] = defaultdict(list)
    for row, adapters, folders in session.execute(query if model is None else query.where(ServedEngine.model == model)):
        known = Known(kind=row.kind, version=row.version or None, meets=Need(row.meets), may_meet=Need(row.may_meet))
        own = set(folders)
        for name in (row.model, *(folders if row.kind == OWN else (name for name in adapters if name not in own))):
            engines[name].append(known)
    return dict(engines)


def adapters_of(model: QueryableAttribute[str], *, is_folder: bool = False) -> ColumnElement[list[str]]:
    """Return the expression for the names of a model's adapters; with `is_folder` of those that our engine runs."""
    names = select(func.array_agg(Model.name)).where(Model.base == model)
    if is_folder:
        names = names.where(Model.adapter.startswith("/"))
    return func.coalesce(names.scalar_subquery(), cast([], ARRAY(Text)))


def read(session: Session, model: str, engine: ServingEngine) -> ServedEngine | None:
    """Return the row of an engine as it is now."""
    key = (model, engine.kind, engine.version or "")
    return session.get(ServedEngine, key, populate_existing=True)


def claim_probe(session: Session, model: str, engine: ServingEngine, *, owner: str, hold: timedelta) -> bool:
    """Claim the probes of an engine if they are due; False if they are not, or another worker makes them.

    A claim ends with `record`, or after `hold`: its worker may have died.
    """
    values = {**_key(model, engine), "owner": owner, "hold": hold}
    return session.execute(_CLAIM, values).first() is not None


def record(session: Session, model: str, engine: ServingEngine, probed: Probed, *, owner: str) -> bool:
    """Store the outcome of claimed probes; False if the claim has ended meanwhile, and nothing is stored."""
    values = {
        **_key(model, engine),
        "owner": owner,
        "meets": int(probed.meets),
        "may_meet": int(probed.may_meet),
        "num_tokens": probed.num_tokens,
        "again": probed.again,
        "findings": orjson.dumps(probed.findings).decode(),
    }
    return session.execute(_RECORD, values).first() is not None


def forget_old(session: Session) -> int:
    """Delete engines that no worker has registered for long and none serves now; return how many."""
    return len(session.execute(_FORGET, {"kept": KEPT_FOR}).all())


def _key(model: str, engine: ServingEngine) -> dict[str, Any]:
    return {"model": model, "kind": engine.kind, "version": engine.version or ""}


# A heartbeat does not write it: a row is touched when a worker starts, and daily when it is probed.
_NOTE = text("""
    INSERT INTO served_engine (model, kind, version, meets, may_meet, due_at)
    VALUES (:model, :kind, :version, :meets, :may_meet, CASE WHEN :is_told THEN NULL ELSE clock_timestamp() END)
    ON CONFLICT (model, kind, version) DO UPDATE SET seen_at = clock_timestamp(),
        meets = CASE WHEN :is_told THEN excluded.meets ELSE served_engine.meets END,
        may_meet = CASE WHEN :is_told THEN excluded.may_meet ELSE served_engine.may_meet END
""")

_CLAIM = text("""
    UPDATE served_engine SET prober_id = :owner, probed_until = clock_timestamp() + CAST(:hold AS interval)
    WHERE model = :model AND kind = :kind AND version = :version AND due_at <= clock_timestamp()
        AND (probed_until IS NULL OR probed_until <= clock_timestamp())
    RETURNING model
""")

_RECORD = text("""
    UPDATE served_engine SET meets = :meets, may_meet = :may_meet, probe_tokens = probe_tokens + :num_tokens,
        findings = findings || CAST(:findings AS jsonb), probed_at = clock_timestamp(),
        due_at = clock_timestamp() + CAST(:again AS interval), seen_at = clock_timestamp(),
        prober_id = NULL, probed_until = NULL
    WHERE model = :model AND kind = :kind AND version = :version AND prober_id = :owner
    RETURNING model
""")

_FORGET = text("""
    DELETE FROM served_engine WHERE seen_at < clock_timestamp() - CAST(:kept AS interval) AND NOT EXISTS (
        SELECT FROM worker WHERE worker.model = served_engine.model AND worker.engine = served_engine.kind
            AND coalesce(worker.engine_version, '') = served_engine.version
    ) RETURNING model
""")
