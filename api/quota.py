"""`/v1/quota`: what the caller's tenant may still use, and when its budgets reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session

from api.admission.rate_limits import Rates
from api.auth import TenantDep
from api.openapi import failures
from api.schemas.quota import BudgetObject, LimitObject, QuotaObject
from api.services import ServicesDep
from api.sessions import SessionDep
from jobs import file_room
from jobs.accounts import budgets, window_budgets
from jobs.accounts.limits import limits_of
from jobs.accounts.reading import reading_today
from jobs.batches import queue_limits
from jobs.settings import Settings

router = APIRouter(prefix="/v1/quota", tags=["usage"], responses=failures(401, 403, 429, 503))


@router.get("", operation_id="readQuota")
def read(request: Request, session: SessionDep, *, tenant: TenantDep, services: ServicesDep) -> QuotaObject:
    """Return the tenant's budgets and limits, with the usage of those that are counted."""
    used = {**_used(session, tenant.id, services.settings), **_spent_rates(request.state.rates)}
    limits = asdict(limits_of(tenant, services.settings))
    windows = [BudgetObject.of_window(allowance) for allowance in window_budgets.allowances(session, tenant.id)]
    quota = budgets.quota(session, tenant.id)
    return QuotaObject(
        currency=services.settings.currency,
        budgets=[BudgetObject.of(quota), *windows],
        may_overflow=tenant.may_overflow,
        may_leave_house=tenant.may_leave_house,
        overflow_spent=quota.overflow_spent,
        limits=[LimitObject.of(name, limit, used.get(name)) for name, limit in limits.items()],
    )


def _used(session: Session, tenant_id: str, settings: Settings) -> Mapping[str, int]:
    num_open, enqueued = queue_limits.open_work(session, tenant_id)
    num_files, stored = file_room.kept_files(session, tenant_id)
    today = reading_today(session, tenant_id, default_seconds=settings.tenant_reading_seconds_per_day)
    kept = {"open_batches": num_open, "enqueued_tokens": enqueued, "files": num_files, "stored_bytes": stored}
    return kept | {"reading_seconds_per_day": today.used_seconds}


def _spent_rates(rates: Rates) -> Mapping[str, int]:
    """Return the tokens and bytes spent of a minute's; requests refill too fast for a useful number."""
    limits = rates.limits
    return {
        "tokens_per_minute": int(limits.tokens_per_minute - rates.tokens),
        "bytes_per_minute": int(limits.bytes_per_minute - rates.bytes),
    }
