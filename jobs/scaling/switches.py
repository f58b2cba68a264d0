"""The rows of a worker that serves one of several models at a time, and its switches between them.

Each time it serves a model it is another worker, under a new id: rates, leases and numbers belong to one model. A
switch drains its row and announces the next one in one transaction, so that other such workers count it at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.database import advisory_lock, clock
from jobs.engines.engine import UNKNOWN_ENGINE
from jobs.ids import new_id
from jobs.scaling.demands import demands
from jobs.scaling.next_model import next_model
from jobs.tables import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A model that a worker is about to serve, and the id under which it will."""

    model: str
    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models of a worker, as it knows them."""

    names: Sequence[str]
    """In an operator's order."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By model, why it could not be served when it was last tried."""
    paused: Collection[str] = ()
    """Those of them that are not tried now."""
    start_seconds: Mapping[str, float] = field(default_factory=dict)
    """By model, how long its last start took."""

    @property
    def usable(self) -> Sequence[str]:
        return [name for name in self.names if name not in self.paused]


def begin(session: Session, models: Models, *, before: str | None) -> Announced | None:
    """Choose the first model, or one after another could not be served, whose row is `before`; None if all wait."""
    advisory_lock(session, _LOCK)
    if not models.usable:
        return None
    own_ids = [] if before is None else [before]
    model = next_model(
        demands(session, models.usable, own_ids=own_ids, start_seconds=models.start_seconds),
        serving=None,
        served_seconds=0.0,
        now=clock(session).timestamp(),
    )
    if before is not None:
        fleet.stop(session, before)
    return _announce(session, model, models)


class OutOfServiceError(Exception):
    """A worker has taken itself out, as its engine returned no numbers: it cannot serve its model now."""


def switch(session: Session, models: Models, serving: Announced, *, served_seconds: float) -> Announced | None:
    """Leave the model that is served if another one needs the worker more, and return that; None: it stays.

    A worker that an operator has drained stays, too. Raises OutOfServiceError with the reason of one that is out.
    """
    advisory_lock(session, _LOCK)
    note(session, models, serving.worker_id)
    row = fleet.find_worker(session, serving.worker_id)
    if row.draining_at is not None:
        if (reason := fleet.out_reason_of(row)) is not None:
            raise OutOfServiceError(reason)
        return None
    model = next_model(
        demands(session, models.usable, own_ids=[serving.worker_id], start_seconds=models.start_seconds),
        serving=serving.model,
        served_seconds=served_seconds,
        now=clock(session).timestamp(),
    )
    if model == serving.model:
        return None
    fleet.set_draining(session, row, is_draining=True)
    return _announce(session, model, models)


def wait(session: Session, failed: Announced, models: Models, *, reason: str) -> None:
    """Turn the row of a worker that has ended into one that claims nothing, and shows why, until the next model."""
    _register(session, failed, models, reason=reason)


def note(session: Session, models: Models, worker_id: str) -> None:
    """Write into a worker's row which models it may serve, and why some cannot be loaded."""
    values = {"may_serve": list(models.names), "left_out": dict(models.left_out)}
    session.execute(update(Worker).where(Worker.id == worker_id).values(values))


def keep_announced(session: Session, worker_id: str) -> None:
    """Keep an announced row alive until the process that serves the model has taken it over."""
    is_announced = (Worker.id == worker_id) & (Worker.engine == UNKNOWN_ENGINE.kind)
    session.execute(update(Worker).where(is_announced).values(heartbeat_at=func.clock_timestamp()))


def _announce(session: Session, model: str, models: Models) -> Announced:
    announced = Announced(model=model, worker_id=new_id("worker"))
    _register(session, announced, models, reason=LOADING)
    return announced


def _register(session: Session, announced: Announced, models: Models, *, reason: str) -> None:
    fleet.register(
        session,
        worker_id=announced.worker_id,
        model=announced.model,
        max_chunks=0,
        max_model_len=0,
        engine=UNKNOWN_ENGINE,
        out_reason=reason,
    )
    note(session, models, announced.worker_id)


LOADING = "loads the model"
_LOCK = "switch"
