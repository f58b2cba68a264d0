"""What the models of a worker need, read from the kept totals: a few rows, however much work is open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import LIVE_WITHIN
from jobs.engines.engine import OWN_ENGINE
from jobs.engines.out import OUT_REASON
from jobs.scaling.limits import Limits
from jobs.scaling.next_model import Demand
from jobs.scaling.rule import Due
from jobs.states import EngineChoice, Priority
from jobs.tables import InputCount

TRUSTED_FOR = timedelta(minutes=5)
"""An older measurement is ignored: no dispatcher runs."""
STARTUP_SECONDS = Limits(max_workers=1).startup_seconds
"""Of a model that this worker has not started yet, without an operator's settings."""


def demands(
    session: Session, models: Sequence[str], *, own_ids: Collection[str], start_seconds: Mapping[str, float]
) -> list[Demand]:
    """Return what each of the models needs, in their order.

    `own_ids` are the rows of the worker that asks, which do not count as other workers; `start_seconds` has what it
    has measured, by model.
    """
    values = {
        "models": list(models),
        "own_ids": list(own_ids),
        "within": LIVE_WITHIN,
        "trusted": TRUSTED_FOR,
        "out_reason": OUT_REASON,
        "own": OWN_ENGINE.kind,
        "any": EngineChoice.ANY.value,
        "counts_kept": InputCount.KEPT,
    }
    return [_demand(row, start_seconds.get(row.model)) for row in session.execute(_DEMANDS, values)]


def _demand(row: Any, start_seconds: float | None) -> Demand:
    # Work that other workers hold is left to them: there is nothing to claim.
    class_dues = row.class_dues if row.has_chunks and row.class_dues is not None else {}
    return Demand(
        model=row.model,
        start_seconds=start_seconds or row.startup_seconds or STARTUP_SECONDS,
        dues={Priority(name): [Due(at=at, tokens=tokens) for at, tokens in dues] for name, dues in class_dues.items()},
        rate=row.rate or row.expected_rate,
        others=row.others,
        is_asked=row.has_chunks or row.is_first_or_counted,
        has_chunks=row.has_chunks,
    )


# The rate is trusted as in `tokenmill_wanted_workers`. A worker that loads the model counts, one that could not load it
# does not. Chunks count where our engine may answer their batch. A model that no worker has loaded yet is loaded once,
# as batches may name it only then.
_DEMANDS = text("""
    SELECT asked.model, scaling.startup_seconds, scaling.expected_rate,
        CASE WHEN due_work.measured_at > now() - CAST(:trusted AS interval) THEN due_work.class_dues END AS class_dues,
        CASE WHEN CAST(rate.counters ->> 'evidence_seconds' AS double precision)
            * power(0.5, greatest(extract(epoch FROM now() - rate.measured_at)::double precision, 0) / 600) >= 1
            THEN rate.tokens_per_second END AS rate,
        (
            SELECT count(*) FROM worker
            WHERE worker.model = asked.model AND stopped_at IS NULL AND draining_at IS NULL
                AND spill_budget_picos IS NULL AND heartbeat_at > now() - CAST(:within AS interval)
                AND id <> ALL(CAST(:own_ids AS text[]))
                AND (NOT coalesce(jsonb_exists(engine_stats, :out_reason), FALSE)
                    OR may_serve <> '{}' AND NOT jsonb_exists(left_out, asked.model))
        ) AS others,
        EXISTS (
            SELECT FROM batch WHERE batch.model = asked.model AND batch.state = 'in_progress'
                AND batch.server_model IS NULL
                AND (batch.engine IS NULL OR batch.engine = :own OR batch.engine_choice = :any)
                AND EXISTS (SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state = 'ready')
        ) OR EXISTS (
            SELECT FROM chunk WHERE state = 'leased' AND worker_id = ANY(CAST(:own_ids AS text[]))
                AND chunk.model = asked.model
        ) AS has_chunks,
        EXISTS (
            SELECT FROM input_count WHERE state = 'counting' AND created_at > now() - CAST(:counts_kept AS interval)
                AND input_count.model IN (
                    SELECT asked.model UNION ALL SELECT name FROM model AS adapter WHERE adapter.base = asked.model
                )
        ) OR NOT EXISTS (SELECT FROM model WHERE name = asked.model AND checked_at IS NOT NULL) AS is_first_or_counted
    FROM unnest(CAST(:models AS text[])) WITH ORDINALITY AS asked (model, place)
    LEFT JOIN scaling ON scaling.model = asked.model
    LEFT JOIN due_work ON due_work.model = asked.model
    LEFT JOIN serving_rate AS rate ON rate.model = asked.model
    ORDER BY asked.place
""")
