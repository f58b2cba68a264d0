"""Operators' actions on keys. The log has their ids, but no part of a secret."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from jobs.accounts import keys
from jobs.admin_log import Admin, Shown
from jobs.states import Scope
from jobs.tables import ApiKey


def create(
    admin: Admin,
    tenant_id: str | None,
    *,
    scopes: Collection[Scope] | None = None,
    name: str | None = None,
    lifetime: timedelta | None = None,
) -> tuple[ApiKey, str]:
    """Create a key and return its secret: `jobs.accounts.keys.create_key`."""
    key, secret = keys.create_key(admin.session, tenant_id, scopes=scopes, name=name, lifetime=lifetime)
    admin.note("key.create", key.id, tenant_id=tenant_id, after=_shown(key))
    return key, secret


def rotate(admin: Admin, key: ApiKey, *, overlap: timedelta, lifetime: timedelta | None = None) -> tuple[ApiKey, str]:
    """Give a key a new secret and return it: `jobs.accounts.keys.rotate_key`."""
    before = _shown(key)
    key, secret = keys.rotate_key(admin.session, key, overlap=overlap, lifetime=lifetime)
    admin.note("key.rotate", key.id, tenant_id=key.tenant_id, before=before, after=_shown(key))
    return key, secret


def revoke(admin: Admin, key: ApiKey) -> ApiKey:
    """Revoke a key with all its secrets; repeating it changes nothing."""
    with admin.noting("key.revoke", key.id, tenant_id=key.tenant_id, look=lambda: _shown(key)):
        keys.revoke_key(admin.session, key)
    return key


def _shown(key: ApiKey) -> Shown:
    return {
        "name": key.name,
        "scopes": key.scopes,
        "expires_at": key.expires_at,
        "previous_until": key.previous_until,
        "revoked_at": key.revoked_at,
    }
