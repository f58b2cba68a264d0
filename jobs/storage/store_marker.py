"""Which store is this database's: the database has an id, and its store carries it as an object, the marker.

The id is that of the rows: a copy of the database, and a dump that was restored, have the same, since the same objects
are named by their rows. Which of several such databases sweeps the store is for `store_owner`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.ids import new_id
from jobs.storage.objects import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """The marker that this database gives its store."""

    marker: str
    is_written: bool
    """Whether a store is known to have carried it: then one without it is not ours, or is away."""


def bind(maker: sessionmaker[Session], storage: Storage) -> None:
    """Have the store carry this database's marker where neither has had one, and require it from then on.

    The first time, the store's folder is made where it is not there. Raises ServiceError where the store carries no
    marker and once did, has that of another database, or lacks a file of ours.
    """
    own, found = _own(maker), storage.access.read_marker()
    if found is None and not own.is_written:
        _require_newest_file(maker, storage)
        storage.access.write_marker(own.marker)
    elif found is not None and found != own.marker:
        raise ServiceError(
            f"the object store {storage.url} belongs to another database (its marker is {found[:80]!r}, ours is "
            f"{own.marker!r}). Give this database a TOKENMILL_STORAGE_URL of its own; where it takes the place of the "
            "other for good, run `tokenmill db adopt-storage`"
        )
    storage.access.marker = own.marker
    storage.access.require_marker()
    if not own.is_written:
        _note_written(maker)


def rewrite(maker: sessionmaker[Session], storage: Storage) -> None:
    """Have the store carry this database's marker, whatever it carries: an operator knows that it is ours."""
    own = _own(maker)
    storage.access.write_marker(own.marker)
    storage.access.marker = own.marker
    _note_written(maker)


def _own(maker: sessionmaker[Session]) -> _Own:
    with transaction(maker) as session:
        session.execute(_MAKE, {"marker": new_id("database")})
        row = session.execute(_READ).one()
    return _Own(marker=row.marker, is_written=row.written_at is not None)


def _note_written(maker: sessionmaker[Session]) -> None:
    with transaction(maker) as session:
        session.execute(_NOTE_WRITTEN)


def _require_newest_file(maker: sessionmaker[Session], storage: Storage) -> None:
    """Raise ServiceError where a database that is older than its marker has files and this store lacks the newest."""
    with transaction(maker) as session:
        key = session.scalar(_NEWEST_KEY)
    if key is not None and not (storage.access.is_there and storage.exists(key)):
        raise ServiceError(
            f"the object store {storage.url} lacks the newest file of this database, {key!r}: it is not mounted, or "
            "another store. Mount it, or correct TOKENMILL_STORAGE_URL; where its objects are lost, "
            "`tokenmill db adopt-storage` goes on without them"
        )


_MAKE = text("INSERT INTO store_marker (marker) VALUES (:marker) ON CONFLICT (id) DO NOTHING")
_READ = text("SELECT marker, written_at FROM store_marker")
_NOTE_WRITTEN = text("UPDATE store_marker SET written_at = clock_timestamp() WHERE written_at IS NULL")
_NEWEST_KEY = text("""
    SELECT object_key FROM file WHERE deleted_at IS NULL AND purged_at IS NULL ORDER BY created_at DESC LIMIT 1
""")
