"""The owner of a store: an object that names the one database that sweeps it.

A copy of that database would take the other's newer objects for leftovers. A database is identified by its cluster's
system identifier, which a standby that takes over keeps and a restored dump does not, and by its number in the cluster.
"""

from __future__ import annotations

import logging

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.errors import NotFoundError
from jobs.storage import store_marker
from jobs.storage.objects import Storage

log = logging.getLogger(__name__)

MARK = ".swept-by"
"""Object that names the database."""
_MAX_BYTES = 200


def may_sweep(maker: sessionmaker[Session], storage: Storage) -> bool:
    """Return whether this database sweeps the store. A store without an owner is marked as ours first."""
    ours, owner = _name_of(maker), _owner(storage)
    if owner == ours:
        return True
    if owner is None:
        storage.put(MARK, ours.encode())
        log.info("store marked storage=%s database=%s", storage.url, ours)
        return False
    log.warning(
        "objects are not swept, another database sweeps this store storage=%s database=%s ours=%s: if that one is gone "
        "for good, run `tokenmill db adopt-storage`; if not, give this one a TOKENMILL_STORAGE_URL of its own",
        storage.url,
        owner,
        ours,
    )
    return False


def adopt(maker: sessionmaker[Session], storage: Storage) -> str | None:
    """Make this database the owner of a store; return the previous owner, None where there was none or it was this one.

    Raises ServiceError, and changes nothing, where the database has no schema: then it is the wrong one.
    """
    with transaction(maker) as session:
        session.execute(_FILES)
    ours, owner = _name_of(maker), _owner(storage)
    store_marker.rewrite(maker, storage)
    storage.put(MARK, ours.encode())
    return None if owner == ours else owner


def _owner(storage: Storage) -> str | None:
    try:
        return storage.read_range(MARK, 0, _MAX_BYTES).decode(errors="replace")
    except NotFoundError:
        return None


def _name_of(maker: sessionmaker[Session]) -> str:
    with transaction(maker) as session:
        return str(session.scalar(_NAME))


_FILES = text("SELECT FROM file LIMIT 0")

_NAME = text("""
    SELECT system_identifier || '/' || pg_database.oid FROM pg_control_system(), pg_database
    WHERE datname = current_database()
""")
