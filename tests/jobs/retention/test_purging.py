from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import deletions, files, partitions
from jobs.accounts import tenants
from jobs.batches.results import read_finished_lines
from jobs.database import transaction
from jobs.deletions import Deleted
from jobs.errors import GoneError, NotFoundError
from jobs.retention import purging
from jobs.storage import Storage
from jobs.tables import Batch, Deletion, File, Result, Tenant, Upload
from lab.s3_server import Mood, S3Server

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
    """Insert a completed batch of `days` ago with one result."""
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
    assert purging.purge_files(maker, storage) == 1
    assert [storage.exists(file.object_key) for file in (expired, in_use, kept)] == [False, True, True]
    assert purging.purge_files(maker, storage) == 0


def test_a_purge_that_was_interrupted_goes_on(
    maker: sessionmaker[Session], storage: Storage, make_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(storage, make_file, expires_at=past())
    with monkeypatch.context() as patched:

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(files, "note_purged", killed)
        with pytest.raises(KeyboardInterrupt):
            purging.purge_files(maker, storage)
    assert purging.purge_files(maker, storage) == 1


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
    """One tenant's undeletable objects, older than all others and more than one transaction handles."""
    storage = Storage(s3.url, max_retries=0)
    s3.trouble(Mood.FORBID, methods="DELETE POST", key_prefix=f"objects/{tenant.id}")
    refused = [stored(storage, make_file, expires_at=past() - MONTH) for _ in range(3)]
    theirs = stored(storage, make_file, tenant_id=other.id, object_key=f"{other.id}/x", expires_at=past())
    monkeypatch.setattr(purging, "_FILES", 2)
    assert purging.purge_files(maker, storage) == 1
    assert not storage.exists(theirs.object_key)
    for file in refused:
        with pytest.raises(NotFoundError):
            files.get_file(session, tenant.id, file.id)
    s3.recover()
    assert purging.purge_files(maker, storage) == 0, "each try in its time"
    session.execute(text("UPDATE file SET purge_again_at = now() WHERE purge_again_at IS NOT NULL"))
    session.commit()
    assert purging.purge_files(maker, storage) == 3
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
    purging.purge_files(maker, storage)
    assert open_ones == [0]


def test_the_object_of_a_deleted_file_goes_though_nobody_deleted_it_after_the_commit(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, storage: Storage, make_file: Make
) -> None:
    file = stored(storage, make_file)
    files.delete_file(session, tenant.id, file.id, by="key_1")
    session.commit()
    assert purging.purge_files(maker, storage) == 1
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
    purging.purge_files(maker, storage)
    assert purging.purge_results(maker, retention=MONTH) == 1
    assert kept_results(session) == {kept.id}
    entry = deletions.find(session, Deleted.FILE, output.id)
    assert entry is not None
    assert (entry.tenant_id, entry.deleted_by) == (output.tenant_id, deletions.EXPIRY)


def test_a_deleted_file_and_its_upload_lose_their_name(
    session: Session, tenant: Tenant, storage: Storage, make_file: Make
) -> None:
    deleted, kept = (stored(storage, make_file, filename="anna.jsonl") for _ in range(2))
    uploads = [
        Upload(
            id=f"upload_{file.id}", tenant_id=tenant.id, state="completed", purpose="batch", filename="anna.jsonl",
            mime_type="application/jsonl", size_bytes=1, expires_at=past(), ended_at=past(), file_id=file.id,
        )
        for file in (deleted, kept)
    ]  # fmt: skip
    session.add_all(uploads)
    session.commit()
    files.delete_file(session, tenant.id, deleted.id, by="key_1")
    session.commit()
    session.expire_all()
    assert [file.filename for file in (deleted, kept)] == ["", "anna.jsonl"]
    assert [upload.filename for upload in uploads] == ["", "anna.jsonl"]


# Costs


def index_conditions(session: Session, statement: str, values: Any) -> str:
    """Return the conditions with which a statement finds its rows in an index, if it can."""
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
    purging.purge_results(maker, retention=MONTH)
    overdue = next(sent for sent in statements if "date_trunc" in sent[0])
    assert "created_at <=" in index_conditions(session, *overdue)


# Results


def test_results_are_dropped_when_their_retention_ends(session: Session, maker: sessionmaker[Session]) -> None:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=count) for count in (31, 30)]
    for day in days:
        partitions.ensure_result_partition(session, day)
    session.commit()
    assert purging.drop_days(maker, retention=MONTH) == [days[0]]
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
    purging.drop_days(maker, retention=MONTH)
    purging.purge_results(maker, retention=MONTH)
    expected = {("five", 4), ("sixty", 4), ("sixty", 6), ("sixty", 40), ("default", 4), ("default", 6)}
    assert kept_results(session) == {made[key].id for key in expected} | {live.id}
    with pytest.raises(GoneError) as caught:
        read_finished_lines(session, made["five", 6])
    assert caught.value.code == "results_expired"
    session.execute(text("UPDATE batch SET state = 'completed' WHERE state = 'in_progress'"))
    tenants.set_retention(session, other, None)
    session.commit()
    assert len(purging.drop_days(maker, retention=MONTH)) == 1


def test_rows_are_purged_in_pieces_and_only_those_of_the_batch(
    session: Session, maker: sessionmaker[Session], make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "_ROWS", 2)
    batch, kept = answered(session, make_batch), answered(session, make_batch)
    session.execute(text(COPIES), {"id": batch.id})
    session.commit()
    with transaction(maker) as own:
        files.delete_results(own, Batch.id == batch.id, by="key_1")
    assert purging.purge_results(maker, retention=MONTH) == 1
    assert kept_results(session) == {kept.id}
    assert purging.purge_results(maker, retention=MONTH) == 0


def test_two_who_purge_the_same_rows_leave_none(
    session: Session, maker: sessionmaker[Session], make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge that waits for rows which another one deletes finds none of them: that says nothing about the rest."""
    monkeypatch.setattr(purging, "_ROWS", 2)
    batch = answered(session, make_batch)
    session.execute(text(COPIES), {"id": batch.id})
    files.delete_results(session, Batch.id == batch.id, by="key_1")
    session.commit()
    values = {"day": partitions.batch_day(batch.created_at), "batch_id": batch.id, "limit": 2}
    session.execute(purging._DELETE_ROWS, values)
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(purging.purge_results, maker, retention=MONTH)
        with maker() as watching:
            while not watching.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                assert not other.done()
        session.commit()
        assert other.result(timeout=60) == 1
    assert kept_results(session) == set()
