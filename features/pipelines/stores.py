"""The stores that operators register for tenants: add, list, find, remove. A tenant sees only their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from features.pipelines.external.opening import open_store
from features.pipelines.external.store import ExternalStore, StoreRefusedError
from features.pipelines.names import check_name
from features.pipelines.tables import Store
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.ids import new_id


def add_store(
    session: Session, tenant_id: str, name: str, url: str, *, options: Mapping[str, str], is_writable: bool
) -> Store:
    """Register a store for a tenant. Raise InputError, or ConflictError if the name is taken."""
    check_name(name)
    # Report errors now as far as possible; environment variables are only known to the control workers.
    open_store(
        name, url, {key: value for key, value in options.items() if not value.startswith("env:")}, timeout_seconds=10
    )
    if _find(session, tenant_id, name) is not None:
        raise ConflictError(f"the tenant has a store {name!r} already; remove it first, or choose another name")
    store = Store(
        id=new_id("store"),
        tenant_id=tenant_id,
        name=name,
        url=url,
        options=dict(options),
        is_writable=is_writable,
    )
    session.add(store)
    session.flush()
    return store


def list_stores(session: Session, tenant_id: str) -> Sequence[Store]:
    """Return a tenant's stores by name."""
    mine = (Store.tenant_id == tenant_id) & Store.deleted_at.is_(None)
    return session.scalars(select(Store).where(mine).order_by(Store.name)).all()


def get_store(session: Session, tenant_id: str, name: str) -> Store:
    """Return a tenant's store. Raise NotFoundError, which lists the existing ones."""
    store = _find(session, tenant_id, name)
    if store is None:
        known = ", ".join(each.name for each in list_stores(session, tenant_id)) or "none yet"
        raise NotFoundError(
            f"There is no store {name[:80]!r} for you; there are: {known}. An operator registers one with "
            f"`tokenmill stores add`.",
            param="store",
        )
    return store


def find_stores(session: Session, tenant_id: str, names: Collection[str]) -> dict[str, Store]:
    """Return those of a tenant's stores that have one of these names, by name."""
    return {store.name: store for store in session.scalars(_NAMED, {"tenant_id": tenant_id, "names": list(names)})}


def require(
    session: Session, tenant_id: str, name: str, *, place: str, writing: bool, known: Mapping[str, Store]
) -> None:
    """Raise NotFoundError or InputError, with the place, if a tenant has no such store or may not write to it.

    `known` is what `find_stores` has found.
    """
    try:
        store = known[name] if name in known else get_store(session, tenant_id, name)
    except NotFoundError as error:
        raise NotFoundError(f"{place}: {error.message}", param=place) from None
    if writing and not store.is_writable:
        raise InputError(
            f"{place}: the store {name!r} is registered for reading only; name another, or ask your operator.",
            param=place,
        )


def remove_store(session: Session, tenant_id: str, name: str) -> Store:
    """Remove a tenant's store: runs that need it fail; its contents stay. Raise NotFoundError."""
    store = get_store(session, tenant_id, name)
    store.deleted_at = session.scalar(select(func.now()))
    store.options = {}
    session.flush()
    return store


def open_registered(store: Store, *, writing: bool, timeout_seconds: float) -> ExternalStore:
    """Open a tenant's store. Raise StoreRefusedError if it is read-only, and what `open_store` raises."""
    if writing and not store.is_writable:
        raise StoreRefusedError(f"The store {store.name!r} is registered for reading only; ask your operator.")
    return open_store(store.name, store.url, store.options, timeout_seconds=timeout_seconds)


def _find(session: Session, tenant_id: str, name: str) -> Store | None:
    return find_stores(session, tenant_id, [name]).get(name)


_IS_NAMED = Store.name.in_(bindparam("names", expanding=True))
_NAMED = select(Store).where(Store.tenant_id == bindparam("tenant_id"), _IS_NAMED, Store.deleted_at.is_(None))
