"""Operators' actions on stores. The log has the names of options but no values, as these include credentials."""

from __future__ import annotations

from collections.abc import Mapping

from features.pipelines import stores
from features.pipelines.tables import Store
from jobs.admin_log import Admin, Shown


def add(admin: Admin, tenant_id: str, name: str, url: str, *, options: Mapping[str, str], is_writable: bool) -> Store:
    """Register a store for a tenant's pipelines: `features.pipelines.stores.add_store`."""
    store = stores.add_store(admin.session, tenant_id, name, url, options=options, is_writable=is_writable)
    admin.note("store.add", store.id, tenant_id=tenant_id, after=_shown(store))
    return store


def remove(admin: Admin, tenant_id: str, name: str) -> None:
    """Remove a tenant's store: `features.pipelines.stores.remove_store`."""
    before = _shown(stores.get_store(admin.session, tenant_id, name))
    store = stores.remove_store(admin.session, tenant_id, name)
    admin.note("store.remove", store.id, tenant_id=tenant_id, before=before)


def _shown(store: Store) -> Shown:
    return {
        "name": store.name,
        "url": store.url,
        "is_writable": store.is_writable,
        "options": sorted(store.options),
    }
