"""Tests of backups: a dump and the objects that it names, despite deletions meanwhile; restored, work continues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.orm import Session, sessionmaker

from features.retrieval.objects import new_key, vectors_key
from jobs.access import SERVICE
from jobs.audit.audit import audit
from jobs.batches import sweeps
from jobs.chunks import claiming, leasing
from jobs.database import connect, sessions
from jobs.errors import ConflictError, InputError, ServiceError
from jobs.files import new_object_key
from jobs.retention import backups, purging
from jobs.states import BatchState
from jobs.storage import Storage, read_documents, store_owner
from jobs.storage.access import MARKER
from jobs.tables import Batch, File, Tenant
from tests.cli.service import Tokenmill
from tests.cli.service import run as tokenmill
from tests.database_roles import as_owner, as_service
from tests.jobs.batches.control import finalise
from tests.jobs.chunks.builders import LEASE, Run, answers, claim_first, flush, reap

MakeFile = Callable[..., File]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "objects").mkdir()
    return Storage((tmp_path / "objects").as_uri())


@pytest.fixture
def make_file(make_file: MakeFile, tenant: Tenant) -> MakeFile:
    """Files whose objects have keys as made by the service."""
    return lambda **columns: make_file(**{"object_key": new_object_key(tenant.id)} | columns)


def on(database_url: str, storage: Storage) -> Tokenmill:
    """Return the command for a database, as its owner if it has one, and a store."""
    owner_url = as_owner(database_url) if make_url(database_url).username == SERVICE else database_url
    where = {"TOKENMILL_DATABASE_URL": database_url, "TOKENMILL_DATABASE_OWNER_URL": owner_url}
    where["TOKENMILL_STORAGE_URL"] = storage.url
    return lambda *arguments, **more: tokenmill(*arguments, **where, **more)


def work_off(session: Session, storage: Storage, batch: Batch) -> None:
    """Act as the workers after a restore: those with leases are gone."""
    session.execute(text("UPDATE chunk SET lease_until = now() - interval '1 s' WHERE state = 'leased'"))
    session.commit()
    reap(session, storage)
    while claim := claiming.claim_next(session, model="m", worker_id="other", lease=LEASE):
        lines = set(range(claim.first_line, claim.first_line + claim.num_lines))
        todo = sorted(lines - leasing.lines_done(session, claim))
        leasing.flush(session, claim, answers(claim, todo), flush_no=0, lease=LEASE)
        leasing.complete(session, claim)
        session.commit()
    sweeps.finish_ready(session)
    session.commit()
    assert finalise(session, storage, batch.id) is BatchState.COMPLETED


def test_a_live_batch_goes_on_in_the_database_and_store_that_were_restored(
    session: Session, storage: Storage, run: Run, database_url: str, empty_database: str, tmp_path: Path
) -> None:
    batch = run(8)
    flush(session, claim_first(session, batch), [0, 1])
    made = on(database_url, storage)("db", "backup", tmp_path / "backup")
    assert made.exit_code == 0, made.output
    assert "1 of them new" in made.stdout
    for found in list(storage.iter_objects()):
        storage.delete(found.name)
    (tmp_path / "other").mkdir()
    other = Storage((tmp_path / "other").as_uri())
    restored = on(empty_database, other)("db", "restore", tmp_path / "backup")
    assert restored.exit_code == 0, restored.output
    engine = connect(as_service(empty_database))
    maker = sessions(engine)
    with maker() as fresh:
        assert audit(fresh, storage=other) == []
        assert not backups.are_objects_held(fresh)
    with maker() as later:
        restored_batch = later.get_one(Batch, batch.id)
        work_off(later, other, restored_batch)
        later.refresh(restored_batch)
        assert restored_batch.num_completed == 8
    with maker() as fresh:
        assert audit(fresh, storage=other) == []
    engine.dispose()


def test_a_service_makes_no_backup_and_is_told_who_does(
    session: Session, storage: Storage, tenant: Tenant, database_url: str, tmp_path: Path
) -> None:
    where = {"TOKENMILL_DATABASE_URL": database_url, "TOKENMILL_STORAGE_URL": storage.url}
    with pytest.raises(ServiceError, match="TOKENMILL_DATABASE_OWNER_URL"):
        tokenmill("db", "backup", tmp_path / "backup", **where)
    assert not backups.are_objects_held(session)


def test_a_backup_that_is_made_again_copies_what_is_new(
    session: Session, storage: Storage, run: Run, database_url: str, tmp_path: Path
) -> None:
    here = on(database_url, storage)
    for number in range(2):
        run(4 + number)
        assert "1 of them new" in here("db", "backup", tmp_path / "backup").stdout
    assert not list((tmp_path / "backup").glob("*.part"))


def test_the_segments_of_indexes_are_copied_and_what_is_made_anew_is_not(
    session: Session, storage: Storage, tenant: Tenant, database_url: str, empty_database: str, tmp_path: Path
) -> None:
    segment = new_key(tenant.id)
    kept = {segment: b"words", vectors_key(segment): b"vectors"}
    read = read_documents.key_of(tenant.id, parsers="p", sha256="0" * 64, name="a.txt")
    for key, content in (kept | {read: b"text"}).items():
        storage.put(key, content)
    session.commit()
    made = on(database_url, storage)("db", "backup", tmp_path / "backup")
    assert "2 of them new" in made.stdout, made.output
    (tmp_path / "other").mkdir()
    other = Storage((tmp_path / "other").as_uri())
    restored = on(empty_database, other)("db", "restore", tmp_path / "backup")
    assert restored.exit_code == 0, restored.output
    names = {found.name for found in other.iter_objects()} - {MARKER}
    assert {name: b"".join(other.iter_chunks(name)) for name in names} == kept
    assert other.access.read_marker() == storage.access.read_marker()


def test_no_object_is_deleted_while_a_backup_is_made(
    session: Session, maker: sessionmaker[Session], storage: Storage, tenant: Tenant, make_file: MakeFile
) -> None:
    store_owner.adopt(maker, storage)
    deleted = make_file(object_key=new_object_key(tenant.id))
    storage.put(deleted.object_key, b"deleted")
    session.execute(text("UPDATE file SET deleted_at = now()"))
    session.commit()
    leftover = new_object_key(tenant.id)
    storage.put(leftover, b"named by no row")

    def purge() -> int:
        files = purging.purge_files(maker, storage)
        return files + purging.sweep_objects(maker, storage, age=timedelta(seconds=-60), unused=timedelta(days=1))

    with backups.objects_held(maker):
        assert purge() == 0
        assert storage.exists(deleted.object_key)
        assert storage.exists(leftover)
    assert purge() == 2


def test_one_backup_is_made_at_a_time_and_one_that_was_killed_is_waited_for_for_a_day(
    session: Session, maker: sessionmaker[Session]
) -> None:
    with backups.objects_held(maker):
        with pytest.raises(ConflictError, match="another backup"), backups.objects_held(maker):
            pass
        assert backups.are_objects_held(session)
        session.execute(text("UPDATE chore SET due_at = now() - interval '1 s'"))
        session.commit()
        assert not backups.are_objects_held(session)
        session.commit()
        with backups.objects_held(maker):
            pass


def test_a_restore_overwrites_nothing_and_says_what_it_needs(
    storage: Storage, database_url: str, tmp_path: Path
) -> None:
    here = on(database_url, storage)
    with pytest.raises(InputError, match="does not exist; name a folder"):
        here("db", "restore", tmp_path / "nothing")
    assert here("db", "backup", tmp_path / "backup").exit_code == 0
    with pytest.raises(InputError, match="the database is not empty"):
        here("db", "restore", tmp_path / "backup")


@pytest.mark.parametrize("url", ["postgresql://me:secret@host/db", "postgresql://me@host/db?password=secret"])
def test_the_password_of_the_database_is_no_argument_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    from cli.database import backup as backup_commands

    script = tmp_path / "pg_dump"
    script.write_text('#!/bin/sh\necho "$PGPASSWORD | $*" >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setattr(backup_commands, "_program", lambda name, major: script)
    monkeypatch.setattr(backups, "server_major", lambda maker: 18)
    with pytest.raises(ServiceError, match=r"secret \| --dbname=postgresql://me@host/db$"):
        backup_commands._run_program("pg_dump", url, sessionmaker())


def test_a_store_that_is_away_is_not_backed_up_as_an_empty_one(
    session: Session, storage: Storage, run: Run, database_url: str, tmp_path: Path
) -> None:
    run(4)
    here = on(database_url, storage)
    assert here("db", "upgrade").exit_code == 0
    (tmp_path / "objects").rename(tmp_path / "unmounted")
    (tmp_path / "objects").mkdir()
    for command in (("db", "backup", tmp_path / "backup"), ("audit",), ("db", "upgrade")):
        with pytest.raises(ServiceError):
            here(*command)
    assert here("db", "adopt-storage").exit_code == 0, "an operator may know better"
    assert here("audit").stdout.count("has no object in the store") == 1
