from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from jobs import files, partitions, retention
from jobs.errors import NotFoundError, ServiceError
from jobs.storage import Storage
from jobs.tables import File, Tenant

Make = Callable[..., Any]


@pytest.fixture
def storage() -> Storage:
    return Storage("memory://")


def stored(storage: Storage, make_file: Make, **columns: Any) -> File:
    file: File = make_file(**columns)
    storage.put(file.object_key, b"x")
    return file


def test_an_expired_file_loses_its_object_and_a_live_batch_keeps_its_input(
    session: Session, storage: Storage, make_file: Make, make_batch: Make
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired, in_use = (stored(storage, make_file, expires_at=past) for _ in range(2))
    kept = stored(storage, make_file)
    make_batch(input_file_id=in_use.id, state="in_progress")
    assert retention.purge_files(session, storage) == 1
    assert [storage.exists(file.object_key) for file in (expired, in_use, kept)] == [False, True, True]
    assert retention.purge_files(session, storage) == 0


def test_a_purge_that_was_interrupted_goes_on(session: Session, storage: Storage, make_file: Make) -> None:
    file = stored(storage, make_file, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    retention.purge_files(session, storage)
    session.rollback()
    assert not storage.exists(file.object_key)
    assert retention.purge_files(session, storage) == 1


def test_a_store_that_fails_leaves_the_file_for_later(
    session: Session, tenant: Tenant, storage: Storage, make_file: Make
) -> None:
    class Failing(Storage):
        def delete(self, key: str) -> None:
            raise ServiceError("the object store failed")

    file = stored(storage, make_file, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(ServiceError):
        retention.purge_files(session, Failing("memory://"))
    assert file.deleted_at is None
    with pytest.raises(NotFoundError):
        files.get_file(session, tenant.id, file.id)


def test_the_object_of_a_deleted_file_goes_though_nobody_deleted_it_after_the_commit(
    session: Session, tenant: Tenant, storage: Storage, make_file: Make
) -> None:
    file = stored(storage, make_file)
    files.delete_file(session, tenant.id, file.id)
    assert retention.purge_files(session, storage) == 1
    assert not storage.exists(file.object_key)


def test_results_are_dropped_when_their_retention_ends(session: Session) -> None:
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=count) for count in (31, 30)]
    for day in days:
        partitions.ensure_result_partition(session, day)
    assert retention.purge_results(session, retention=timedelta(days=30)) == [days[0]]
    assert days[1] in partitions.partition_days(session)
