"""`/v1/admin/tenants`: create, read, change, disable and delete tenants."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from api.fields import WHOLE, Storable, StrictModel
from api.openapi import failures
from features.administration import tenants
from features.administration.http.access import AdminDep, AdministrationDep
from features.administration.schemas import DeletedTenant, TenantList, TenantObject
from jobs.accounts import budgets
from jobs.accounts.budgets import MAX_LIMIT_TOKENS
from jobs.accounts.limits import MAX_LIMIT, NAMES
from jobs.accounts.tenants import MAX_WEIGHT, MIN_WEIGHT, find_tenant, list_tenants
from jobs.admin_log import Admin
from jobs.errors import InputError
from jobs.settings import MAX_DAYS
from jobs.states import AskedPriority
from jobs.tables import Tenant

router = APIRouter(prefix="/v1/admin/tenants", tags=["admin"], responses=failures(401, 403, 503))

Tokens = Annotated[int, WHOLE, Field(ge=0, le=MAX_LIMIT_TOKENS)]


class CreateTenantBody(StrictModel):
    name: Annotated[Storable, Field(min_length=1, max_length=200)]
    weight: Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    """Share of the GPUs relative to other tenants."""
    limit_tokens: Tokens | None = None
    """Limit of its token budget; null for no limit."""
    best_priority: AskedPriority = AskedPriority.NORMAL


class ChangeTenantBody(StrictModel):
    """The fields to change; those left out stay as they are."""

    limit_tokens: Tokens | None = None
    """Null for no limit."""
    limits: dict[str, Annotated[int, WHOLE, Field(ge=0, le=MAX_LIMIT)] | None] = {}  # noqa: RUF012 - pydantic copies it
    """The limits to change, by name; null resets to the setting."""
    best_priority: AskedPriority = AskedPriority.NORMAL
    may_overflow: bool = False
    may_leave_house: bool = False
    retention_days: Annotated[int, WHOLE, Field(ge=1, le=MAX_DAYS)] | None = None
    """Null for the service's default."""

    def changes(self) -> dict[str, Any]:
        """Return the given changes. Raise InputError if there are none, or a limit is unknown."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        if not values:
            raise InputError(f"There is nothing to change. Give one of {', '.join(type(self).model_fields)}.")
        if unknown := [name for name in self.limits if name not in NAMES]:
            allowed = ", ".join(NAMES)
            raise InputError(f"There is no limit {unknown[0][:80]!r}; there are {allowed}.", param="limits")
        return values


class DisableTenantBody(StrictModel):
    cancel_batches: bool = False
    """Whether its open batches are cancelled as well; otherwise they continue."""


@router.get("", operation_id="listTenants")
def list_all(admin: AdminDep) -> TenantList:
    return TenantList(data=[_shown(admin, tenant) for tenant in list_tenants(admin.session)])


@router.post("", operation_id="createTenant", responses=failures(408, 409, 413))
def create(body: CreateTenantBody, admin: AdminDep) -> TenantObject:
    """Create a tenant; it has no key yet."""
    tenant = tenants.create(
        admin, body.name, weight=body.weight, limit_tokens=body.limit_tokens, best_priority=body.best_priority
    )
    return _shown(admin, tenant)


@router.get("/{tenant_id}", operation_id="retrieveTenant", responses=failures(404))
def retrieve(tenant_id: str, admin: AdminDep) -> TenantObject:
    """Return a tenant by its id or name."""
    return _shown(admin, find_tenant(admin.session, tenant_id))


@router.patch("/{tenant_id}", operation_id="changeTenant", responses=failures(404, 408, 413))
def change(tenant_id: str, body: ChangeTenantBody, admin: AdminDep) -> TenantObject:
    """Change a tenant's rights and limits; accepted batches stay as they are."""
    changes, tenant = body.changes(), find_tenant(admin.session, tenant_id)
    tenants.change(admin, tenant, **changes)
    return _shown(admin, tenant)


@router.post("/{tenant_id}/disable", operation_id="disableTenant", responses=failures(404, 408, 413))
def disable(
    tenant_id: str, administration: AdministrationDep, *, body: DisableTenantBody | None = None
) -> TenantObject:
    """Accept nothing more from a tenant; it may still read its data, and its schedules pause.

    With `cancel_batches` the response comes once all are cancelled; a repeated request continues.
    """
    with administration() as admin:
        tenant = find_tenant(admin.session, tenant_id)
        tenant_id = tenant.id  # a name could belong to another tenant before this ends
        tenants.disable(admin, tenant)
    if body is not None and body.cancel_batches:
        tenants.cancel_batches(administration, tenant_id)
    with administration() as admin:
        return _shown(admin, find_tenant(admin.session, tenant_id))


@router.post("/{tenant_id}/enable", operation_id="enableTenant", responses=failures(404))
def enable(tenant_id: str, admin: AdminDep) -> TenantObject:
    tenant = find_tenant(admin.session, tenant_id)
    tenants.enable(admin, tenant)
    return _shown(admin, tenant)


@router.delete("/{tenant_id}", operation_id="deleteTenant", responses=failures(404))
def delete(tenant_id: str, admin: AdminDep) -> DeletedTenant:
    """Revoke its keys, and delete its batches, results and files within a minute or two; its bills stay."""
    tenant = find_tenant(admin.session, tenant_id)
    tenants.delete(admin, tenant)
    return DeletedTenant(id=tenant.id)


def _shown(admin: Admin, tenant: Tenant) -> TenantObject:
    return TenantObject.of(tenant, budgets.quota(admin.session, tenant.id))
