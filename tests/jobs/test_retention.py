from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.s3_server import Mood, S3Server
from jobs import deletions, files, partitions, retention, store_owner
from jobs.accounts import tenants
from jobs.batches.results import read_finished_lines
from jobs.database import connect, sessions, transaction
from jobs.deletions import Deleted
from jobs.errors import GoneError, NotFoundError, ServiceError
from jobs.ids import new_id
from jobs.storage import Storage
from jobs.store_owner import MARK
from jobs.tables import Batch, Deletion, File, Result, Tenant

Make = Callable[..., Any]
MONTH = timedelta(days=30)
COPIES = """
    INSERT INTO result (batch_day, batch_id, line_no, result_no, is_error, input_tokens, cached_tokens,
        output_tokens, line)
    SELECT batch_day, batch_id, number, number + 1, false, 0, 0, 0, ''
    FROM result, generate_series(1, 6) AS number WHERE batch_id = :id
"""


@pytest.fixture
def storage() -> Storage:
    return Storage("memory://")


@pytest.fixture
def other(session: Session) -> Tenant:
    tenant = tenants.create_tenant(session, "other")
    session.commit()
    return tenant


def stored(storage: Storage, make_file: Make, **columns: Any) -> File:
    file: File = make_file(**columns)
    storage.put(file.object_key, b"x")
    return file


def past() -> datetime:
    return datetime.now(UTC) - timedelta(seconds=1)


def answered(session: Session, make_batch: Make, *, days: int = 0, **columns: Any) -> Batch:
    """Insert a completed batch of so many days ago with one result."""
    created_at = datetime.now(UTC) - timedelta(days=days)
    partitions.ensure_result_partition(session, partitions.batch_day(created_at))
    values = {"state": "completed", "num_requests": 1, "num_completed": 1, "created_at": created_at}
    batch: Batch = make_batch(**values | columns)
    session.add(
        Result(
            batch_day=partitions.batch_day(created_at), batch_id=batch.id, line_no=0, result_no=1, status_code=200,
            is_error=False, input_tokens=0, cached_tokens=0, output_tokens=0, line=b"{}",
        )
    )  # fmt: skip
    session.commit()
    return batch


def kept_results(session: Session) -> set[str]:
    session.rollback()
    return set(session.scalars(select(Result.batch_id)))


# Files


def test_an_expired_file_loses_its_object_and_a_live_batch_keeps_its_input(
    maker: sessionmaker[Session], storage: Storage, make_file: Make, make_batch: Make
) -> None:
    expired, in_use = (stored(storage, make_file, expires_at=past()) for _ in range(2))
    kept = stored(storage, make_file)
    make_batch(input_file_id=in_use.id, state="in_progress")
    assert retention.purge_files(maker, storage) == 1
    assert [storage.exists(file.object_key) for file in (expired, in_use, kept)] == [False, True, True]
    assert retention.purge_files(maker, storage) == 0


def test_a_purge_that_was_interrupted_goes_on(
    maker: sessionmaker[Session], storage: Storage, make_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(storage, make_file, expires_at=past())
    with monkeypatch.context() as patched:

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(files, "note_purged", killed)
        with pytest.raises(KeyboardInterrupt):
            retention.purge_files(maker, storage)
    assert retention.purge_files(maker, storage) == 1


def test_an_object_that_cannot_be_deleted_stops_no_other_and_is_tried_again(
    session: Session,
    maker: sessionmaker[Session],
    tenant: Tenant,
    *,
    other: Tenant,
    s3: S3Server,
    make_file: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One tenant's undeletable objects, older than all others and more than a transaction takes."""
    storage = Storage(s3.url, max_retries=0)
    s3.trouble(Mood.FORBID, methods="DELETE POST", key_prefix=f"objects/{tenant.id}")
    refused = [stored(storage, make_file, expires_at=past() - MONTH) for _ in range(3)]
    theirs = stored(storage, make_file, tenant_id=other.id, object_key=f"{other.id}/x", expires_at=past())
    monkeypatch.setattr(retention, "_FILES", 2)
    assert retention.purge_files(maker, storage) == 1
    assert not storage.exists(theirs.object_key)
    for file in refused:
        with pytest.raises(NotFoundError):
            files.get_file(session, tenant.id, file.id)
    s3.recover()
    assert retention.purge_files(maker, storage) == 0, "each try in its time"
    session.execute(text("UPDATE file SET purge_again_at = now() WHERE purge_again_at IS NOT NULL"))
    session.commit()
    assert retention.purge_files(maker, storage) == 3
    assert s3.keys() == []


def test_no_transaction_is_open_while_the_store_is_asked(
    session: Session, maker: sessionmaker[Session], storage: Storage, make_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(storage, make_file, expires_at=past())
    open_ones: list[int | None] = []
    plain = storage.delete

    def delete(key: str) -> None:
        busy = "state <> 'idle' AND pid <> pg_backend_pid() AND datname = current_database()"
        open_ones.append(session.scalar(text(f"SELECT count(*) FROM pg_stat_activity WHERE {busy}")))
        plain(key)

    monkeypatch.setattr(storage, "delete", delete)
    retention.purge_files(maker, storage)
    assert open_ones == [0]


def test_the_object_of_a_deleted_file_goes_though_nobody_deleted_it_after_the_commit(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, storage: Storage, make_file: Make
) -> None:
    file = stored(storage, make_file)
    files.delete_file(session, tenant.id, file.id, by="key_1")
    session.commit()
    assert retention.purge_files(maker, storage) == 1
    assert not storage.exists(file.object_key)


def test_an_output_that_expires_takes_the_results_with_it(
    session: Session, maker: sessionmaker[Session], storage: Storage, make_file: Make, make_batch: Make
) -> None:
    output = stored(storage, make_file, purpose="batch_output", expires_at=past())
    batch, kept = answered(session, make_batch, output_file_id=output.id), answered(session, make_batch)
    with pytest.raises(GoneError, match="expired") as caught:
        read_finished_lines(session, batch)
    assert caught.value.code == "results_deleted"
    session.rollback()
    retention.purge_files(maker, storage)
    assert retention.purge_results(maker, retention=MONTH) == 1
    assert kept_results(session) == {kept.id}
    entry = deletions.find(session, Deleted.FILE, output.id)
    assert entry is not None
    assert (entry.tenant_id, entry.deleted_by) == (output.tenant_id, deletions.EXPIRY)


# What it costs


@pytest.fixture
def statements(engine: Engine) -> list[tuple[str, Any]]:
    """Every statement that is sent from here on, with its values."""
    sent: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        sent.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    return sent


def index_conditions(session: Session, statement: str, values: Any) -> str:
    """Return how a statement finds its rows in an index, where it can."""
    connection = session.connection()
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    plan = connection.exec_driver_sql(f"EXPLAIN {statement}", values).scalars().all()
    return "\n".join(line for line in plan if "Index Cond" in line)


def test_what_is_due_is_found_in_an_index(
    session: Session, maker: sessionmaker[Session], make_batch: Make, statements: list[tuple[str, Any]]
) -> None:
    answered(session, make_batch)
    statements.clear()
    files.due_for_purge(session, limit=1)
    assert "LEAST(expires_at, deleted_at) <=" in index_conditions(session, *statements[-1])
    session.rollback()
    statements.clear()
    retention.purge_results(maker, retention=MONTH)
    overdue = next(sent for sent in statements if "date_trunc" in sent[0])
    assert "created_at <=" in index_conditions(session, *overdue)


def test_a_sweep_locks_only_what_no_file_names(
    maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path, make_file: Make, statements: list[tuple[str, Any]]
) -> None:
    named = [make_file(object_key=files.new_object_key(tenant.id)).object_key for _ in range(3)]
    for key in (*named, files.new_object_key(tenant.id)):
        aged(tmp_path, key)
    local = owned(maker, tmp_path.as_uri())
    statements.clear()
    assert retention.sweep_objects(maker, local, age=DAY) == 1
    assert sum("pg_try_advisory" in statement for statement, _ in statements) == 1


# Results


def test_results_are_dropped_when_their_retention_ends(session: Session, maker: sessionmaker[Session]) -> None:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=count) for count in (31, 30)]
    for day in days:
        partitions.ensure_result_partition(session, day)
    session.commit()
    assert retention.drop_days(maker, retention=MONTH) == [days[0]]
    assert days[1] in partitions.partition_days(session)
    entry = session.scalars(select(Deletion)).one()
    assert (entry.kind, entry.subject_id, entry.deleted_by) == ("result_day", str(days[0]), "retention")


def test_each_tenant_has_a_retention_of_its_own(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, other: Tenant, make_batch: Make
) -> None:
    third = tenants.create_tenant(session, "third")
    for owner, days in ((tenant, 5), (other, 60)):
        tenants.set_retention(session, owner, days)
    made = {
        (name, days): answered(session, make_batch, days=days, tenant_id=owner.id)
        for name, owner in (("five", tenant), ("sixty", other), ("default", third))
        for days in (4, 6, 40)
    }
    live = answered(session, make_batch, days=40, tenant_id=third.id, state="in_progress")
    retention.drop_days(maker, retention=MONTH)
    retention.purge_results(maker, retention=MONTH)
    expected = {("five", 4), ("sixty", 4), ("sixty", 6), ("sixty", 40), ("default", 4), ("default", 6)}
    assert kept_results(session) == {made[key].id for key in expected} | {live.id}
    with pytest.raises(GoneError) as caught:
        read_finished_lines(session, made["five", 6])
    assert caught.value.code == "results_expired"
    session.execute(text("UPDATE batch SET state = 'completed' WHERE state = 'in_progress'"))
    tenants.set_retention(session, other, None)
    session.commit()
    assert len(retention.drop_days(maker, retention=MONTH)) == 1


def test_rows_are_purged_in_pieces_and_only_those_of_the_batch(
    session: Session, maker: sessionmaker[Session], make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_ROWS", 2)
    batch, kept = answered(session, make_batch), answered(session, make_batch)
    session.execute(text(COPIES), {"id": batch.id})
    session.commit()
    with transaction(maker) as own:
        files.delete_results(own, Batch.id == batch.id, by="key_1")
    assert retention.purge_results(maker, retention=MONTH) == 1
    assert kept_results(session) == {kept.id}
    assert retention.purge_results(maker, retention=MONTH) == 0


def test_two_who_purge_the_same_rows_leave_none(
    session: Session, maker: sessionmaker[Session], make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for rows that the other deletes finds none of them: that says nothing about the rest."""
    monkeypatch.setattr(retention, "_ROWS", 2)
    batch = answered(session, make_batch)
    session.execute(text(COPIES), {"id": batch.id})
    files.delete_results(session, Batch.id == batch.id, by="key_1")
    session.commit()
    values = {"day": partitions.batch_day(batch.created_at), "batch_id": batch.id, "limit": 2}
    session.execute(retention._DELETE_ROWS, values)
    with ThreadPoolExecutor(1) as threads:
        purging = threads.submit(retention.purge_results, maker, retention=MONTH)
        with maker() as watching:
            while not watching.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not purging.done()
        session.commit()
        assert purging.result(timeout=60) == 1
    assert kept_results(session) == set()


# Objects without a file


DAY = timedelta(days=1)


def owned(maker: sessionmaker[Session], url: str) -> Storage:
    """Open a store that the test's database sweeps."""
    storage = Storage(url)
    store_owner.adopt(maker, storage)
    return storage


def aged(root: Path, key: str, *, age: timedelta = 2 * DAY) -> None:
    """Put a local object, or a part of one, of this age."""
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    moment = (datetime.now(UTC) - age).timestamp()
    os.utime(path, (moment, moment))


def test_objects_and_parts_that_no_file_names_are_swept_once_they_are_old(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path, make_file: Make
) -> None:
    part, whole, young, named = (files.new_object_key(tenant.id) for _ in range(4))
    aged(tmp_path, f"{part}#1")
    aged(tmp_path, whole)
    aged(tmp_path, young, age=timedelta(hours=23))
    aged(tmp_path, named)
    aged(tmp_path, "notes/mine.txt")
    make_file(object_key=named)
    storage = owned(maker, tmp_path.as_uri())
    assert retention.sweep_objects(maker, storage, age=DAY) == 2
    assert {found.name for found in storage.iter_objects()} == {young, named, "notes/mine.txt", MARK}
    entries = session.scalars(select(Deletion)).all()
    assert {(entry.kind, entry.subject_id, entry.tenant_id, entry.deleted_by) for entry in entries} == {
        ("object", key, tenant.id, "sweep") for key in (part, whole)
    }
    assert retention.sweep_objects(maker, storage, age=DAY) == 0


def test_objects_in_an_s3_are_swept_too(
    maker: sessionmaker[Session], tenant: Tenant, s3: S3Server, make_file: Make
) -> None:
    storage = owned(maker, s3.url)
    leftover = files.new_object_key(tenant.id)
    kept = stored(storage, make_file, object_key=files.new_object_key(tenant.id))
    storage.put(leftover, b"x")
    assert retention.sweep_objects(maker, storage, age=timedelta(0)) == 1
    assert [storage.exists(key) for key in (leftover, kept.object_key)] == [False, True]


def test_objects_of_a_tenant_that_this_database_does_not_know_are_left_alone(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    """Those of another deployment, or of a database whose dump is yet to be restored."""
    theirs, leftover = files.new_object_key(new_id("tenant")), files.new_object_key(tenant.id)
    aged(tmp_path, theirs)
    aged(tmp_path, leftover)
    storage = owned(maker, tmp_path.as_uri())
    assert retention.sweep_objects(maker, storage, age=DAY) == 1
    assert {found.name for found in storage.iter_objects()} == {theirs, MARK}
    assert [entry.subject_id for entry in session.scalars(select(Deletion))] == [leftover]


def test_an_object_that_is_being_named_is_not_swept(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    new = files.NewFile(
        object_key=files.new_object_key(tenant.id), filename="a", purpose=files.Purpose.USER_DATA, size_bytes=1
    )
    aged(tmp_path, new.object_key)
    storage = owned(maker, tmp_path.as_uri())
    files.create_file(session, tenant.id, new)
    assert retention.sweep_objects(maker, storage, age=DAY) == 0, "not committed yet"
    session.commit()
    assert retention.sweep_objects(maker, storage, age=DAY) == 0
    assert storage.exists(new.object_key)


def test_an_object_that_was_swept_is_never_named(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    """An upload of days, between its last part and its row."""
    new = files.NewFile(
        object_key=files.new_object_key(tenant.id), filename="a", purpose=files.Purpose.USER_DATA, size_bytes=1
    )
    aged(tmp_path, f"{new.object_key}#1")
    assert retention.sweep_objects(maker, owned(maker, tmp_path.as_uri()), age=DAY) == 1
    with pytest.raises(ServiceError, match="took too long"):
        files.create_file(session, tenant.id, new)


@pytest.fixture
def copy(
    maker: sessionmaker[Session], engine: Engine, new_database: Callable[[], str]
) -> Iterator[sessionmaker[Session]]:
    """Sessions of another database of the cluster, with the same tenants and without the files since."""
    other = connect(new_database())
    copied = sessions(other)
    with maker() as source, copied.begin() as target:
        for row in source.execute(text("SELECT id, name FROM tenant")).mappings():
            target.execute(text("INSERT INTO tenant (id, name) VALUES (:id, :name)"), dict(row))
    yield copied
    other.dispose()


def test_a_copy_of_the_database_sweeps_nothing_of_the_store_of_the_first(
    maker: sessionmaker[Session],
    tenant: Tenant,
    tmp_path: Path,
    make_file: Make,
    copy: sessionmaker[Session],
    caplog: pytest.LogCaptureFixture,
) -> None:
    named = make_file(object_key=files.new_object_key(tenant.id)).object_key
    aged(tmp_path, named)
    storage = Storage(tmp_path.as_uri())
    assert retention.sweep_objects(maker, storage, age=DAY) == 0, "it marks the store"
    assert retention.sweep_objects(maker, storage, age=DAY) == 0
    assert caplog.text == ""
    assert retention.sweep_objects(copy, storage, age=DAY) == 0
    assert storage.exists(named)
    assert "objects are not swept, another database sweeps this store" in caplog.text
    store_owner.adopt(copy, storage)
    assert retention.sweep_objects(copy, storage, age=DAY) == 1
    caplog.clear()
    assert retention.sweep_objects(maker, storage, age=DAY) == 0
    assert "adopt-storage" in caplog.text


def test_a_store_is_swept_from_the_second_time_on(maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path) -> None:
    """The first time marks it: of two databases that do so at once only one sweeps then."""
    aged(tmp_path, files.new_object_key(tenant.id))
    storage = Storage(tmp_path.as_uri())
    assert [retention.sweep_objects(maker, storage, age=DAY) for _ in range(2)] == [0, 1]


def test_whoever_may_use_the_schema_may_ask_for_the_name_of_the_database(maker: sessionmaker[Session]) -> None:
    with maker() as session:
        session.execute(text("CREATE ROLE plain"))
        session.execute(text("SET LOCAL ROLE plain"))
        assert "/" in session.scalar(store_owner._NAME)
