"""Tenants and their keys: create, find, authenticate, revoke."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.accounts.budgets import check_limit
from jobs.errors import AuthenticationError, ConflictError, InputError, NotFoundError
from jobs.ids import new_id
from jobs.settings import MAX_DAYS
from jobs.states import AskedPriority
from jobs.tables import ApiKey, Budget, Tenant

KEY_PREFIX = "tm-"
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
"""Tokens divided by a weight sum up to a tenant's virtual time, which must stay a number that others can reach."""
_SECRET_BYTES = 32
_KEY_CHARACTERS = len(KEY_PREFIX) + 43  # 32 bytes in base64
_HINT_CHARACTERS = 10  # of a key, shown in lists: the prefix and 7 of its random characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a key belongs to."""

    tenant: Tenant
    key_id: str


def create_tenant(
    session: Session,
    name: str,
    *,
    weight: float = 1.0,
    limit_tokens: int | None = None,
    best_priority: AskedPriority = AskedPriority.NORMAL,
) -> Tenant:
    """Create a tenant with its budget; `limit_tokens` None means unlimited. Raises ConflictError on a taken name."""
    if not name.strip():
        raise InputError("the tenant's name is empty; give it one", param="name")
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        allowed = f"{MIN_WEIGHT:g} to {MAX_WEIGHT:g} (1 is the usual share)"
        raise InputError(f"weight is {weight}; give {allowed}", param="weight")
    check_limit(limit_tokens)
    tenant: Tenant | None = session.scalar(
        insert(Tenant)
        .values(id=new_id("tenant"), name=name, weight=weight, best_priority=best_priority.value)
        .on_conflict_do_nothing(index_elements=[Tenant.name])
        .returning(Tenant)
    )
    if tenant is None:
        raise ConflictError(f"a tenant named {name!r} exists already; choose another name", param="name")
    session.add(Budget(tenant_id=tenant.id, limit_tokens=limit_tokens))
    session.flush()
    return tenant


def find_tenant(session: Session, name: str) -> Tenant:
    """Return the tenant of this name or id. Raises NotFoundError."""
    is_named = (Tenant.name == name) | (Tenant.id == name)
    tenant = session.scalar(select(Tenant).where(is_named, Tenant.deleted_at.is_(None)))
    if tenant is None:
        raise NotFoundError(f"there is no tenant {name!r}; `tokenmill tenants create {name}` makes it")
    return tenant


def list_tenants(session: Session) -> Sequence[Tenant]:
    """Return all tenants that are not deleted, oldest first."""
    return session.scalars(
        select(Tenant).where(Tenant.deleted_at.is_(None)).order_by(Tenant.created_at, Tenant.id)
    ).all()


def create_key(session: Session, tenant_id: str) -> tuple[ApiKey, str]:
    """Create a key; return its row and the secret (`tm-` + 256 random bits), which cannot be read again."""
    if session.get(Tenant, tenant_id) is None:
        raise NotFoundError(f"there is no tenant {tenant_id!r}")
    secret = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    key = ApiKey(id=new_id("key"), tenant_id=tenant_id, key_hash=hash_key(secret), hint=secret[:_HINT_CHARACTERS])
    session.add(key)
    session.flush()
    return key, secret


def list_keys(session: Session, tenant_id: str) -> Sequence[ApiKey]:
    """Return a tenant's keys, revoked ones included, oldest first."""
    query = select(ApiKey).where(ApiKey.tenant_id == tenant_id).order_by(ApiKey.created_at, ApiKey.id)
    return session.scalars(query).all()


def revoke_key(session: Session, key: str) -> ApiKey:
    """Revoke a key named by its id, its secret, or the beginning of its secret that lists show.

    Revoking twice keeps the first time. Raises NotFoundError, or ConflictError where a beginning fits several keys.
    """
    named = (ApiKey.id == key) | (ApiKey.key_hash == hash_key(key)) | (ApiKey.hint == key[:_HINT_CHARACTERS])
    found = session.scalars(select(ApiKey).where(named)).all()
    exact = [row for row in found if row.id == key or row.key_hash == hash_key(key)]
    if not exact and len(key) == _HINT_CHARACTERS:
        exact = list(found)
    if not exact:
        raise NotFoundError(f"there is no key {key[:_HINT_CHARACTERS]!r}…; `tokenmill keys list` shows the ids")
    if len(exact) > 1:
        raise ConflictError(f"{key!r} begins {len(exact)} keys; name one by its id: {', '.join(k.id for k in exact)}")
    session.execute(
        update(ApiKey).where(ApiKey.id == exact[0].id, ApiKey.revoked_at.is_(None)).values(revoked_at=func.now())
    )
    session.refresh(exact[0])
    return exact[0]


def revoke_keys(session: Session, tenant_id: str) -> None:
    """Revoke all keys of a tenant."""
    of_tenant = update(ApiKey).where(ApiKey.tenant_id == tenant_id, ApiKey.revoked_at.is_(None))
    session.execute(of_tenant.values(revoked_at=func.now()))


def set_retention(session: Session, tenant: Tenant, days: int | None) -> None:
    """Set for how many days a tenant's results are kept line by line; None: as long as the service keeps them."""
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InputError(f"the retention is {days} days; give 1 to {MAX_DAYS}", param="retention_days")
    tenant.retention_days = days
    session.flush()


def authenticate(session: Session, secret: str) -> Caller:
    """Return the tenant and the id of a key. Raises AuthenticationError; the message never repeats the key."""
    if not secret:
        raise AuthenticationError("no API key was given; send `Authorization: Bearer tm-…`", code="missing_api_key")
    query = (
        select(Tenant, ApiKey.id, ApiKey.revoked_at)
        .join(ApiKey, ApiKey.tenant_id == Tenant.id)
        .where(ApiKey.key_hash == hash_key(secret))
    )
    row = session.execute(query).one_or_none()
    if row is None:
        raise AuthenticationError("the API key is not known here; `tokenmill keys create` makes one")
    tenant, key_id, revoked_at = row
    if revoked_at is not None:
        raise AuthenticationError(f"the API key was revoked at {revoked_at:%Y-%m-%d %H:%M} UTC; use another one")
    return Caller(tenant=tenant, key_id=key_id)


def hint_of(secret: str) -> str | None:
    """Return the characters of a key that lists show; None for what cannot be a key, and may be another secret."""
    is_key = secret.startswith(KEY_PREFIX) and len(secret) >= _KEY_CHARACTERS
    return secret[:_HINT_CHARACTERS] if is_key else None


def hash_key(secret: str) -> str:
    """Return the SHA-256 of a key as hex: 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()
