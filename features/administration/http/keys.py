"""`/v1/admin/keys` and `/v1/admin/tenants/{tenant_id}/keys`: create, list, rotate and revoke keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from api.fields import WHOLE, Storable, StrictModel
from api.openapi import failures
from features.administration import keys
from features.administration.http.access import AdminDep
from features.administration.schemas import KeyList, KeyObject, KeyWithSecret
from jobs.accounts.keys import MAX_NAME_CHARACTERS, MAX_OVERLAP, get_key, list_keys
from jobs.accounts.tenants import find_tenant
from jobs.admin_log import Admin
from jobs.settings import MAX_DAYS
from jobs.states import Scope

router = APIRouter(prefix="/v1/admin", tags=["admin"], responses=failures(401, 403, 503))

Lifetime = Annotated[int, WHOLE, Field(ge=60, le=MAX_DAYS * 86_400)]
Overlap = Annotated[int, WHOLE, Field(ge=0, le=int(MAX_OVERLAP.total_seconds()))]


class CreateKeyBody(StrictModel):
    name: Annotated[Storable, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)] | None = None
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))] | None = None
    """For a tenant's key `submit`, `read` or, by default, both; an operator's key has `admin`."""
    expires_in_seconds: Lifetime | None = None
    """Null for never."""


class RotateKeyBody(StrictModel):
    overlap_seconds: Overlap = 86_400
    """How long the previous secret still works; an older one stops at once."""
    expires_in_seconds: Lifetime | None = None
    """Null keeps the key's expiry."""


@router.get("/keys", operation_id="listOperatorKeys")
def list_of_operators(admin: AdminDep) -> KeyList:
    return KeyList(data=[KeyObject.of(key) for key in list_keys(admin.session, None)])


@router.post("/keys", operation_id="createOperatorKey", responses=failures(408, 413))
def create_of_operators(admin: AdminDep, *, body: CreateKeyBody | None = None) -> KeyWithSecret:
    """Create a key for operators. Only this response has its secret."""
    return _create(admin, None, body or CreateKeyBody())


@router.get("/tenants/{tenant_id}/keys", operation_id="listKeys", responses=failures(404))
def list_of_tenant(tenant_id: str, admin: AdminDep) -> KeyList:
    tenant_keys = list_keys(admin.session, find_tenant(admin.session, tenant_id).id)
    return KeyList(data=[KeyObject.of(key) for key in tenant_keys])


@router.post("/tenants/{tenant_id}/keys", operation_id="createKey", responses=failures(404, 408, 413))
def create_of_tenant(tenant_id: str, admin: AdminDep, *, body: CreateKeyBody | None = None) -> KeyWithSecret:
    """Create a key for a tenant. Only this response has its secret."""
    return _create(admin, find_tenant(admin.session, tenant_id).id, body or CreateKeyBody())


@router.post("/keys/{key_id}/rotate", operation_id="rotateKey", responses=failures(404, 408, 409, 413))
def rotate(key_id: str, admin: AdminDep, *, body: RotateKeyBody | None = None) -> KeyWithSecret:
    """Give a key a new secret, which only this response has."""
    values = body or RotateKeyBody()
    overlap = timedelta(seconds=values.overlap_seconds)
    key, secret = keys.rotate(
        admin, get_key(admin.session, key_id), overlap=overlap, lifetime=_lifetime(values.expires_in_seconds)
    )
    return KeyWithSecret.made(key, secret)


@router.delete("/keys/{key_id}", operation_id="revokeKey", responses=failures(404))
def revoke(key_id: str, admin: AdminDep) -> KeyObject:
    """Revoke a key with all its secrets; lists still show it."""
    return KeyObject.of(keys.revoke(admin, get_key(admin.session, key_id)))


def _create(admin: Admin, tenant_id: str | None, body: CreateKeyBody) -> KeyWithSecret:
    lifetime = _lifetime(body.expires_in_seconds)
    return KeyWithSecret.made(*keys.create(admin, tenant_id, scopes=body.scopes, name=body.name, lifetime=lifetime))


def _lifetime(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
