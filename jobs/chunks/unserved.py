"""What batches in progress wait for while no worker of the house can take them up, as sentences for their owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import IS_LIVE, IS_OUT, LIVE_WITHIN, engine_of
from jobs.counted import counted
from jobs.engines import able
from jobs.engines.engine import ServingEngine
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.states import BatchState
from jobs.tables import Batch, Worker


def waits_for(session: Session, batches: Sequence[Batch], *, within: timedelta = LIVE_WITHIN) -> dict[str, str]:
    """Return what batches in progress wait for, by id, as sentences for their owners; others are left out.

    A worker drained by an operator finishes its chunks and claims none. Those outside the house are not counted.
    """
    serving: dict[str | None, list[ServingEngine]] = {}
    for row in session.execute(_SERVING, {"within": within}):
        serving.setdefault(row.model, []).extend([engine_of(row)] if row.takes_up else [])
    lacking = [batch for batch in batches if batch.state == BatchState.IN_PROGRESS and not serving.get(batch.model)]
    drained = [batch.id for batch in lacking if batch.model in serving]
    leased = set(session.scalars(_HELD_BATCHES, {"ids": drained})) if drained else set()
    others = session.execute(_SERVING_OTHERS, {"within": within}).all() if lacking else []
    away = {row.model for row in others if not row.may_serve}
    shared = _waits_by_model(others)
    running = [batch for batch in batches if batch.state == BatchState.IN_PROGRESS and serving.get(batch.model)]
    unable = ((batch.id, able.lacking(session, batch, serving[batch.model])) for batch in running)
    return {batch_id: lack for batch_id, lack in unable if lack is not None} | {
        batch.id: shared.get(batch.model or "")
        or (_drained(batch) if batch.model in serving else _unserved(batch, is_away=batch.model in away))
        for batch in lacking
        if batch.id not in leased
    }


def _drained(batch: Batch) -> str:
    what = "prepare documents" if batch.model == PREPARE_MODEL else f"serve the model {batch.model!r}"
    return (
        f"All running workers that {what} are drained and claim no chunks. The batch continues as soon as one is "
        "resumed (`tokenmill workers resume`), or another is started."
    )


def _unserved(batch: Batch, *, is_away: bool) -> str:
    if is_away:
        return (
            f"The server behind the workers of the model {batch.model!r} does not answer. The batch continues as soon "
            "as it does."
        )
    if batch.model == PREPARE_MODEL:
        return (
            "No running worker prepares documents. The batch continues as soon as one is started (`tokenmill prepare`)."
        )
    return (
        f"No running worker serves the model {batch.model!r}. The batch continues as soon as one is started "
        f"(`tokenmill worker --model {batch.model}`)."
    )


def _waits_by_model(workers: Iterable[Any]) -> dict[str, str]:
    """Return for each model of workers of several models why none serves it now, as a sentence."""
    by_model: dict[str, list[Any]] = defaultdict(list)
    for worker in workers:
        for model in worker.may_serve:
            by_model[model].append(worker)
    return {model: _between_models(model, own) for model, own in by_model.items()}


def _between_models(model: str, workers: Sequence[Any]) -> str:
    usable = [worker for worker in workers if model not in worker.left_out]
    if not usable:
        return f"The model {model!r} cannot be loaded now. It is tried again; your operator sees the reason."
    if any(worker.model == model for worker in usable):
        return f"A worker loads the model {model!r}. The batch continues as soon as it is ready."
    serve = "serves another model" if len(usable) == 1 else "serve other models"
    return (
        f"{counted(len(usable), 'worker')} that may serve the model {model!r} {serve} now. The batch continues as soon "
        "as one switches, which it does in time for the deadlines as far as it can."
    )


_OF_HOUSE = Worker.spill_budget_picos.is_(None)
# Workers that are away, and those of several models, which serve one of them.
_SERVING_OTHERS = (
    select(Worker.model, Worker.may_serve, Worker.left_out)
    .where(IS_LIVE, _OF_HOUSE, Worker.draining_at.is_(None), IS_OUT | (func.cardinality(Worker.may_serve) > 0))
    .order_by(Worker.started_at, Worker.id)
)

# The engines of each model, and whether one of their workers claims chunks; those that have stopped claiming on their
# own are left out.
_SERVED_BY = (
    *(Worker.model, Worker.engine, Worker.engine_version, Worker.engine_dtype, Worker.meets),
    *(Worker.spill_budget_picos, Worker.adapters),  # the first is null here, for `engine_of`
)
_SERVING = (
    select(*_SERVED_BY, func.bool_or(Worker.draining_at.is_(None)).label("takes_up"))
    .where(IS_LIVE, ~IS_OUT, _OF_HOUSE)
    .group_by(*_SERVED_BY)
)
_HELD_BATCHES = text("""
    SELECT DISTINCT batch_id FROM chunk WHERE batch_id = ANY(CAST(:ids AS text[])) AND state = 'leased'
""")
