"""`/v1/admin/scaling`: how many workers each model may have."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from api.fields import WHOLE, StrictModel
from api.openapi import failures
from features.administration import scaling
from features.administration.http.access import AdminDep
from features.administration.schemas import RemovedScaling, ScalingList, ScalingObject
from jobs.accounts.money import PICOS_A_MICRO
from jobs.scaling.limits import MOST_PICOS, MOST_STARTUP_SECONDS, MOST_WORKERS, Limits, limits_by_model

router = APIRouter(prefix="/v1/admin/scaling", tags=["admin"], responses=failures(401, 403, 503))

Workers = Annotated[int, WHOLE, Field(ge=0, le=MOST_WORKERS)]
Cost = Annotated[int, WHOLE, Field(ge=1, le=MOST_PICOS // PICOS_A_MICRO)]


class ScalingBody(StrictModel):
    """All settings of a model; those left out get their defaults."""

    max_workers: Workers
    min_workers: Workers = 0
    """Workers that stay without work. With 0 the last one stops."""
    startup_seconds: Annotated[float, Field(ge=1, le=MOST_STARTUP_SECONDS)] = 130.0
    """From the request for a worker until it computes."""
    expected_rate: Annotated[float, Field(gt=0, le=1e12)] | None = None
    """Tokens a second of a worker, where none was measured lately."""
    worker_hour_micros: Cost | None = None
    """Cost of a worker an hour, in micro-units of currency."""
    max_hour_micros: Cost | None = None
    """The most that all workers may cost an hour."""

    def limits(self) -> Limits:
        return Limits(
            max_workers=self.max_workers,
            min_workers=self.min_workers,
            startup_seconds=self.startup_seconds,
            expected_rate=self.expected_rate,
            worker_hour_picos=None if self.worker_hour_micros is None else self.worker_hour_micros * PICOS_A_MICRO,
            max_hour_picos=None if self.max_hour_micros is None else self.max_hour_micros * PICOS_A_MICRO,
        )


@router.get("", operation_id="listScaling")
def list_all(admin: AdminDep) -> ScalingList:
    """Return the settings of all models that have them, by name."""
    found = sorted(limits_by_model(admin.session).items())
    return ScalingList(data=[ScalingObject.of(name, limits) for name, limits in found])


@router.put("/{name:path}", operation_id="setScaling", responses=failures(404, 408, 413))
def set_limits(name: str, body: ScalingBody, admin: AdminDep) -> ScalingObject:
    """Set how many workers a model may have: all settings at once."""
    limits = body.limits()
    scaling.set_limits(admin, name, limits)
    return ScalingObject.of(name, limits)


@router.delete("/{name:path}", operation_id="removeScaling", responses=failures(404))
def remove(name: str, admin: AdminDep) -> RemovedScaling:
    """Remove a model's settings: the number of its workers is no longer computed."""
    scaling.remove_limits(admin, name)
    return RemovedScaling(model=name)
