"""A worker whose server is outside the house, its claims, and forecasts of batches that are late."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts.prices import Prices
from jobs.chunks import claiming, fleet
from jobs.chunks.leasing import ClaimedChunk
from jobs.engines import served
from jobs.engines.engine import EVERYTHING, ServingEngine, Spill
from jobs.forecasts import snapshot
from jobs.tables import Batch, Tenant
from tests.jobs.chunks.builders import LEASE

Run = Callable[..., Batch]
MakeLate = Callable[..., Batch]

BUDGET = 1_000_000
OUTSIDE = ServingEngine(
    kind="openai",
    meets=EVERYTHING,
    spill=Spill(budget_picos=BUDGET, prices=Prices(input_picos=1, output_picos=2)),
)


def start(session: Session, engine: ServingEngine, worker_id: str | None = None) -> None:
    """Start a worker of an engine; its id is the engine's kind."""
    fleet.register(
        session, worker_id=worker_id or engine.kind, model="m", max_chunks=4, max_model_len=512, engine=engine
    )
    served.note(session, "m", engine)
    session.commit()


def claim(session: Session, engine: ServingEngine) -> ClaimedChunk | None:
    claimed = claiming.claim_next(session, model="m", worker_id=engine.kind, lease=LEASE, engine=engine)
    session.commit()
    return claimed


def allow(session: Session, tenant: Tenant, *, may: bool = True) -> None:
    session.execute(text("UPDATE tenant SET may_leave_house = :may WHERE id = :id"), {"may": may, "id": tenant.id})
    session.commit()


def forecast(session: Session, *, is_late: bool = True, age: timedelta = timedelta(0)) -> None:
    """Forecast every batch anew, with this outcome."""
    snapshot.take(session)
    session.execute(text("UPDATE forecast SET is_late = :is_late, made_at = now() - :age"), locals() | {"age": age})
    session.commit()


def look_after(session: Session, seconds: float) -> None:
    """Forecast `seconds` after the last time."""
    moved = text("UPDATE serving_rate SET measured_at = clock_timestamp() - make_interval(secs => :s)")
    session.execute(moved, {"s": seconds})
    snapshot.take(session)
    session.commit()
