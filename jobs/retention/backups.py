"""Backups: hold deletions while objects are copied, and copy them.

The database is dumped before the objects are copied: objects referenced by the dump still exist as long as nobody
deletes them. Later objects are not referenced after a restore, and are swept once old. The dump program is the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.errors import ConflictError, NotFoundError
from jobs.storage import Storage

_HELD = "delete no objects"
LONGEST = timedelta(days=1)
"""Objects are deleted again after this time, in case the holder has died."""


@contextmanager
def objects_held(maker: sessionmaker[Session]) -> Iterator[None]:
    """Hold all deletions of objects until the block ends. Raises ConflictError where another backup is under way."""
    with transaction(maker) as session:
        if session.execute(_HOLD, {"name": _HELD, "longest": LONGEST}).first() is None:
            raise ConflictError(
                "another backup of this database is under way, or was killed within the last day. Wait for it, or run "
                "`tokenmill db backup --anew` if you know that none is."
            )
    try:
        yield
    finally:
        release(maker)


def release(maker: sessionmaker[Session]) -> None:
    """Allow deletions again, whoever held them."""
    with transaction(maker) as session:
        session.execute(text("DELETE FROM chore WHERE name = :name"), {"name": _HELD})


def are_objects_held(session: Session) -> bool:
    """Return whether a backup is under way; check it in the transaction that selects objects to delete."""
    return bool(session.scalar(_IS_HELD, {"name": _HELD}))


def has_schema(maker: sessionmaker[Session]) -> bool:
    """Return whether the database has our tables."""
    with transaction(maker) as session:
        return session.scalar(text("SELECT to_regclass('alembic_version')")) is not None


def server_major(maker: sessionmaker[Session]) -> int:
    """Return the major version of Postgres: dump programs must be at least as new."""
    with transaction(maker) as session:
        return int(session.scalar(text("SELECT current_setting('server_version_num')::integer / 10000")) or 0)


def copy_objects(source: Storage, target: Storage, *, is_copied: Callable[[str], bool]) -> int:
    """Copy the objects with such names that `target` lacks; return how many. Objects never change."""
    num_copied = 0
    for entry in source.iter_objects():
        if not is_copied(entry.name) or _has_all(target, entry.name, source):
            continue
        try:
            target.put(entry.name, source.iter_chunks(entry.name))
        except NotFoundError:
            continue  # not referenced by any row: its upload failed
        num_copied += 1
    return num_copied


def copy_marker(source: Storage, target: Storage) -> None:
    """Make `target` the store of the same database as `source`: the dump beside it has the marker in a row.

    A store that carries a marker keeps it: a restored service does not start on the store of another database.
    """
    marker = source.access.read_marker()
    if marker is not None and target.access.read_marker() is None:
        target.access.write_marker(marker)


def _has_all(target: Storage, key: str, source: Storage) -> bool:
    try:
        return target.size(key) == source.size(key)
    except NotFoundError:
        return False


_HOLD = text("""
    INSERT INTO chore (name, due_at) VALUES (:name, clock_timestamp() + CAST(:longest AS interval))
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE chore.due_at <= clock_timestamp()
    RETURNING name
""")

_IS_HELD = text("SELECT EXISTS (SELECT FROM chore WHERE name = :name AND due_at > clock_timestamp())")
