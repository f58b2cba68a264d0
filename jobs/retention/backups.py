"""What a backup needs of the service: objects that stay while they are copied, and the copying.

A dump of the database comes first and the objects after it: what a row of the dump names is in the store until then, if
nobody deletes it. What came later is named by no row, and swept once it is old. Knows no program that dumps.
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
"""After so long objects are deleted again, should the one who holds them have died."""


@contextmanager
def objects_held(maker: sessionmaker[Session]) -> Iterator[None]:
    """Let nobody delete objects until the block ends. Raises ConflictError where another backup is under way."""
    with transaction(maker) as session:
        if session.execute(_HOLD, {"name": _HELD, "longest": LONGEST}).first() is None:
            raise ConflictError(
                "another backup of this database is under way, or was killed within the last day. Wait for it, or run "
                "`tokenmill db backup --anew` where you know that none is."
            )
    try:
        yield
    finally:
        release(maker)


def release(maker: sessionmaker[Session]) -> None:
    """Let objects be deleted again, whoever held them."""
    with transaction(maker) as session:
        session.execute(text("DELETE FROM chore WHERE name = :name"), {"name": _HELD})


def are_objects_held(session: Session) -> bool:
    """Tell whether a backup is under way: whoever deletes objects asks in the transaction that says which."""
    return bool(session.scalar(_IS_HELD, {"name": _HELD}))


def has_schema(maker: sessionmaker[Session]) -> bool:
    """Tell whether the database has tables of ours."""
    with transaction(maker) as session:
        return session.scalar(text("SELECT to_regclass('alembic_version')")) is not None


def server_major(maker: sessionmaker[Session]) -> int:
    """Return the major version of Postgres: programs that dump it must be as new."""
    with transaction(maker) as session:
        return int(session.scalar(text("SELECT current_setting('server_version_num')::integer / 10000")) or 0)


def copy_objects(source: Storage, target: Storage, *, is_copied: Callable[[str], bool]) -> int:
    """Copy the objects of such names that `target` does not have; return how many. An object never changes."""
    num_copied = 0
    for found in source.iter_objects():
        if not is_copied(found.name) or _has_all(target, found.name, source):
            continue
        try:
            target.put(found.name, source.iter_chunks(found.name))
        except NotFoundError:
            continue  # one that no row names: its upload failed
        num_copied += 1
    return num_copied


def copy_marker(source: Storage, target: Storage) -> None:
    """Make `target` the store of the database that `source` is: the dump beside it has the marker in a row.

    A store that carries a marker keeps it: what is restored does not start on the store of another database.
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
