"""An operator's settings of how many workers a model may have: their ranges, and their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.errors import InputError, NotFoundError
from jobs.tables import Scaling

MOST_WORKERS = 10_000
MOST_STARTUP_SECONDS = 86_400.0
MOST_PICOS = 10**18
"""A million units of currency an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of a model. Raises InputError for values out of range, and for those that exclude each other."""

    max_workers: int
    min_workers: int = 0
    """Kept without work: a warm pool. 0 stops the last worker when there is none."""
    startup_seconds: float = 130.0
    """From the request for a worker until it computes; llm-d-autoscaling 1404 measured this for pods with a GPU."""
    expected_rate: float | None = None
    """Tokens a second of a worker, where none was measured lately."""
    worker_hour_picos: int | None = None
    """Cost of a worker an hour, in pico-units of currency."""
    max_hour_picos: int | None = None
    """The most that all may cost an hour."""

    def __post_init__(self) -> None:
        _require(self.max_workers, "max_workers", least=1, most=MOST_WORKERS)
        _require(self.min_workers, "min_workers", least=0, most=self.max_workers)
        _require(self.startup_seconds, "startup_seconds", least=1, most=MOST_STARTUP_SECONDS)
        if self.expected_rate is not None and not 0 < self.expected_rate < math.inf:
            raise InputError(f"expected_rate is {self.expected_rate}; give tokens a second above 0", param="scaling")
        self._check_cost()

    def _check_cost(self) -> None:
        if (self.worker_hour_picos is None) != (self.max_hour_picos is None):
            raise InputError(
                "of the cost of a worker an hour and the most that all may cost, one is missing; give both or none",
                param="scaling",
            )
        if self.worker_hour_picos is None or self.max_hour_picos is None:
            return
        _require(self.worker_hour_picos, "the cost of a worker an hour, in pico-units,", least=1, most=MOST_PICOS)
        least = self.worker_hour_picos * max(self.min_workers, 1)
        _require(
            self.max_hour_picos, "the most that all may cost an hour, in pico-units,", least=least, most=MOST_PICOS
        )

    @property
    def most(self) -> int:
        """Return the most workers by number and by money."""
        if self.worker_hour_picos is None or self.max_hour_picos is None:
            return self.max_workers
        return min(self.max_workers, self.max_hour_picos // self.worker_hour_picos)

    @classmethod
    def of(cls, row: Scaling) -> Self:
        return cls(**{field.name: getattr(row, field.name) for field in fields(cls)})


def set_limits(session: Session, model: str, limits: Limits) -> None:
    """Set a model's settings, all of them; the model exists."""
    values = asdict(limits)
    row = insert(Scaling).values(model=model, **values)
    session.execute(row.on_conflict_do_update(index_elements=[Scaling.model], set_=values))


def remove_limits(session: Session, model: str) -> None:
    """Remove a model's settings. Raises NotFoundError where it has none."""
    removed = session.scalar(delete(Scaling).where(Scaling.model == model).returning(Scaling.model))
    if removed is None:
        raise NotFoundError(f"The model {model!r} has no settings for scaling.", param="model")


def limits_by_model(session: Session) -> Mapping[str, Limits]:
    """Return the settings of all models that have them."""
    rows = session.scalars(select(Scaling), execution_options={"populate_existing": True})
    return {row.model: Limits.of(row) for row in rows}


def _require(value: float, name: str, *, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InputError(f"{name} is {value:,.15g}; give {least:,.15g} to {most:,.15g}", param="scaling")
