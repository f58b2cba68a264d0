"""Whether lines of late batches leave the house, or why they stay, and a sentence for their owners."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts.spill_days import HAS_ROOM
from jobs.engines.able import may_answer_batch
from jobs.engines.engine import ServingEngine
from jobs.engines.fits import FORECAST_KEPT
from jobs.engines.names import label
from jobs.engines.out import CLAIMS
from jobs.states import Priority

_LATE = "The workers of the house will miss its deadline"


class Leave(StrEnum):
    """Whether the lines of a late batch leave the house, or why they stay."""

    LEAVES = "leaves"
    NOT_ALLOWED = "not_allowed"
    REPRODUCIBLE = "reproducible"
    OTHER_ENGINE = "other_engine"
    NO_ADAPTER = "no_adapter"
    NO_ROOM = "no_room"


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A late batch whose model a server outside the house serves, too."""

    leave: Leave
    where: str
    """The engine of that server, with its version."""
    engine: str | None
    """The one that gave the batch's first answer."""

    @property
    def note(self) -> str:
        """Return the decision as a sentence for the batch's owner."""
        return f"{_LATE}{_NOTES[self.leave].format(where=self.where, engine=self.engine)}"


_NOTES = {
    Leave.LEAVES: (
        ", and its lines leave for {where} as far as the day's budget has room, the first ones only if all of them fit."
    ),
    Leave.NOT_ALLOWED: (
        ". {where} outside the house could take its lines, if your operator allows yours to leave "
        "(`tokenmill tenants spill`)."
    ),
    Leave.REPRODUCIBLE: ". Its lines do not leave for {where}, as it is to be reproducible.",
    Leave.OTHER_ENGINE: (
        ". Its lines do not leave for {where}, as its first answer came from {engine}; with `engine: any` a batch "
        "takes any engine."
    ),
    Leave.NO_ADAPTER: ". Its lines do not leave for {where}, whose server does not list their adapter.",
    Leave.NO_ROOM: ". Today's budget for {where} outside the house has no room; the next day begins at 00:00 UTC.",
}


def late_ones(session: Session, batch_ids: Collection[str], *, within: timedelta) -> dict[str, Late]:
    """Return those of late batches whose model a server outside the house serves, too, by id.

    `within` is how long a worker lives after a heartbeat. No line of class overflow leaves.
    """
    values = {
        "ids": list(batch_ids),
        "within": within,
        "forecast_kept": FORECAST_KEPT,
        "overflow": Priority.OVERFLOW.value,
    }
    return {
        row.id: Late(leave=_leave(row), where=label(row.kind, row.version), engine=row.engine)
        for row in session.execute(_LATE_ONES, values)
    }


def _leave(row: Any) -> Leave:
    if not row.may_leave_house:
        return Leave.NOT_ALLOWED
    if row.server_model is not None and row.server_model not in row.adapters:
        return Leave.NO_ADAPTER
    if not may_answer_batch(row, ServingEngine(kind=row.kind, adapters=frozenset(row.adapters))):
        return Leave.REPRODUCIBLE if row.is_reproducible else Leave.OTHER_ENGINE
    return Leave.LEAVES if row.has_room else Leave.NO_ROOM


# Of those that claim chunks, the worker with the largest budget stands for all.
_LATE_ONES = text(f"""
    SELECT batch.id, batch.engine, batch.engine_dtype, batch.engine_choice, batch.is_reproducible,
        batch.server_model, outside.adapters,
        tenant.may_leave_house, outside.engine AS kind, outside.engine_version AS version,
        {HAS_ROOM.format(budget="outside.spill_budget_picos")} AS has_room
    FROM batch
    JOIN forecast ON forecast.batch_id = batch.id
        AND forecast.is_late AND forecast.made_at > statement_timestamp() - CAST(:forecast_kept AS interval)
    JOIN tenant ON tenant.id = batch.tenant_id
    CROSS JOIN LATERAL (
        SELECT engine, engine_version, spill_budget_picos, adapters FROM worker
        WHERE model = batch.model AND stopped_at IS NULL AND spill_budget_picos IS NOT NULL
            AND {CLAIMS} AND heartbeat_at > now() - CAST(:within AS interval)
        ORDER BY spill_budget_picos DESC, id LIMIT 1
    ) AS outside
    WHERE batch.id = ANY(CAST(:ids AS text[])) AND batch.priority <> :overflow
""")
