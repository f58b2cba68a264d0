"""Batches by name, status, metadata, time and cost; and the names that lists show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from jobs.accounts.money import PICOS_A_UNIT
from jobs.states import BatchState
from jobs.tables import Batch, File

_INPUT = func.coalesce(Batch.source_file_id, Batch.input_file_id)
"""The owner's input, not the version that a feature has filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What batches are looked for; None and empty: whatever it is."""

    name: str | None = None
    """Part of the name that lists show, in any case."""
    states: Sequence[BatchState] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_from: int | None = None
    """In Unix seconds."""
    created_before: int | None = None
    cost_from: Decimal | None = None
    """In units of the currency."""
    cost_below: Decimal | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions that a batch must meet."""
        conditions: list[ColumnElement[bool]] = []
        if self.name:
            conditions.append(_is_named(self.name))
        if self.states:
            conditions.append(Batch.state.in_(self.states))
        if self.metadata:
            conditions.append(Batch.request_metadata.contains(dict(self.metadata)))
        if self.created_from is not None:
            conditions.append(Batch.created_at >= datetime.fromtimestamp(self.created_from, UTC))
        if self.created_before is not None:
            conditions.append(Batch.created_at < datetime.fromtimestamp(self.created_before, UTC))
        if self.cost_from is not None:
            conditions.append(Batch.cost_picos >= self.cost_from * PICOS_A_UNIT)
        if self.cost_below is not None:
            conditions.append(Batch.cost_picos < self.cost_below * PICOS_A_UNIT)
        return conditions


def names_of(session: Session, batches: Iterable[Batch]) -> dict[str, str]:
    """Return the names that lists show, by the ids of the batches; a batch whose input is deleted may have none."""
    given = {batch.id: batch.name for batch in batches if batch.name is not None}
    inputs = {batch.id: batch.source_file_id or batch.input_file_id for batch in batches if batch.name is None}
    if not inputs:
        return given
    kept = File.id.in_(set(inputs.values())) & File.deleted_at.is_(None)
    filenames = {row.id: row.filename for row in session.execute(select(File.id, File.filename).where(kept))}
    return given | {batch_id: filenames[file_id] for batch_id, file_id in inputs.items() if file_id in filenames}


def _is_named(part: str) -> ColumnElement[bool]:
    filename = select(File.filename).where(File.id == _INPUT, File.deleted_at.is_(None)).scalar_subquery()
    return func.coalesce(Batch.name, filename).icontains(part, autoescape=True)
