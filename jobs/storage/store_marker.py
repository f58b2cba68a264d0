"""The store's marker: an object with the database's id, which identifies the store as this database's.

The id belongs to the rows: a copy of the database, and a restored dump, have the same one, since their rows reference
the same objects. `store_owner` decides which of several such databases sweeps the store.
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
    """The marker of this database."""

    marker: str
    is_written: bool
    """Whether a store is known to have carried it: a store without it is then not ours, or is away."""


def bind(maker: sessionmaker[Session], storage: Storage) -> None:
    """Write this database's marker to the store where neither has one, and require it from then on.

    The first time, a missing folder of the store is created. Raises ServiceError where the store has lost its marker,
    has that of another database, or lacks one of our files.
    """
    own, marker = _own(maker), storage.access.read_marker()
    if marker is None and not own.is_written:
        _require_newest_file(maker, storage)
        storage.access.write_marker(own.marker)
    elif marker is not None and marker != own.marker:
        raise ServiceError(
            f"the object store {storage.url} belongs to another database (its marker is {marker[:80]!r}, ours is "
            f"{own.marker!r}). Give this database a TOKENMILL_STORAGE_URL of its own; where it takes the place of the "
            "other for good, run `tokenmill db adopt-storage`"
        )
    storage.access.marker = own.marker
    storage.access.require_marker()
    if not own.is_written:
        _note_written(maker)


def rewrite(maker: sessionmaker[Session], storage: Storage) -> None:
    """Write this database's marker, whatever the store carries: the operator asserts that it is ours."""
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
    """Raise ServiceError where a database older than its marker has files and this store lacks the newest."""
    with transaction(maker) as session:
        key = session.scalar(_NEWEST_KEY)
    if key is not None and not (storage.access.is_there and storage.exists(key)):
        raise ServiceError(
            f"the object store {storage.url} lacks the newest file of this database, {key!r}: it is not mounted, or "
            "another store. Mount it, or correct TOKENMILL_STORAGE_URL; where its objects are lost, "
            "`tokenmill db adopt-storage` continues without them"
        )


_MAKE = text("INSERT INTO store_marker (marker) VALUES (:marker) ON CONFLICT (id) DO NOTHING")
_READ = text("SELECT marker, written_at FROM store_marker")
_NOTE_WRITTEN = text("UPDATE store_marker SET written_at = clock_timestamp() WHERE written_at IS NULL")
_NEWEST_KEY = text("""
    SELECT object_key FROM file WHERE deleted_at IS NULL AND purged_at IS NULL ORDER BY created_at DESC LIMIT 1
""")
