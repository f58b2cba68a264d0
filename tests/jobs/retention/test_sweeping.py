"""Tests of sweeping objects that no file names: done by one database, and nothing else is deleted."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import files
from jobs.access import standing_of
from jobs.accounts.tenants import create_tenant
from jobs.database import connect, sessions
from jobs.errors import ServiceError
from jobs.ids import new_id
from jobs.retention import purging
from jobs.settings import Settings
from jobs.storage import Storage, read_documents, store_owner
from jobs.storage.access import MARKER
from jobs.storage.connection import unlisted_uploads
from jobs.storage.store_owner import MARK
from jobs.tables import Deletion, File, Tenant
from lab.s3_server import S3Server
from tests.jobs.configuration_page import PAGE

Make = Callable[..., Any]
DAY = timedelta(days=1)
OURS = {MARK, MARKER}
"""The store's ownership marker."""


def owned(maker: sessionmaker[Session], url: str) -> Storage:
    """Open a store that the test's database sweeps."""
    storage = Storage(url)
    store_owner.adopt(maker, storage)
    return storage


def aged(root: Path, key: str, *, age: timedelta = 2 * DAY) -> None:
    """Set the age of a local object, or of a part of one."""
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
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 2
    assert {found.name for found in storage.iter_objects()} == {young, named, "notes/mine.txt", *OURS}
    entries = session.scalars(select(Deletion)).all()
    assert {(entry.kind, entry.subject_id, entry.tenant_id, entry.deleted_by) for entry in entries} == {
        ("object", key, tenant.id, "sweep") for key in (part, whole)
    }
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 0


def test_objects_in_an_s3_are_swept_too(
    maker: sessionmaker[Session], tenant: Tenant, s3: S3Server, make_file: Make
) -> None:
    storage = owned(maker, s3.url)
    leftover = files.new_object_key(tenant.id)
    kept: File = make_file(object_key=files.new_object_key(tenant.id))
    storage.put(kept.object_key, b"x")
    storage.put(leftover, b"x")
    assert purging.sweep_objects(maker, storage, age=timedelta(0), unused=timedelta(days=30)) == 1
    assert [storage.exists(key) for key in (leftover, kept.object_key)] == [False, True]


def test_a_sweep_says_which_rule_the_bucket_needs_for_what_it_cannot_list(
    maker: sessionmaker[Session], s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobs.retention")
    for url in (s3.url, tmp_path.as_uri()):
        purging.sweep_objects(maker, owned(maker, url), age=DAY, unused=timedelta(days=30))
    (said,) = caplog.messages
    assert f"storage={s3.url} prefix=" in said
    assert "prefix='objects/': the bucket needs a lifecycle rule with AbortIncompleteMultipartUpload" in said


def test_the_documented_rule_is_one_that_a_bucket_takes_and_spares_uploads_under_way(s3: S3Server) -> None:
    import boto3  # the real server's own client, a dependency of it

    fenced = re.search(r"```json\n(\{\"Rules\".*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert fenced is not None
    given = json.loads(fenced[1].replace("PREFIX/", "objects/"))
    client = boto3.client(
        "s3",
        endpoint_url=s3.environment["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.put_bucket_lifecycle_configuration(Bucket=s3.bucket, LifecycleConfiguration=given)
    (rule,) = client.get_bucket_lifecycle_configuration(Bucket=s3.bucket)["Rules"]
    client.close()
    assert (rule["Status"], rule["Filter"]["Prefix"]) == ("Enabled", unlisted_uploads(s3.url))
    days = rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]
    assert 24 * days > Settings().leftover_hours


def test_objects_of_a_tenant_that_this_database_does_not_know_are_left_alone(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    """Objects of another deployment, or of a database whose dump is not restored yet."""
    theirs, leftover = files.new_object_key(new_id("tenant")), files.new_object_key(tenant.id)
    aged(tmp_path, theirs)
    aged(tmp_path, leftover)
    storage = owned(maker, tmp_path.as_uri())
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 1
    assert {found.name for found in storage.iter_objects()} == {theirs, *OURS}
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
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 0, "not committed yet"
    session.commit()
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 0
    assert storage.exists(new.object_key)


def test_an_object_that_was_swept_is_never_named(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    """An upload of days, between its last part and its row."""
    new = files.NewFile(
        object_key=files.new_object_key(tenant.id), filename="a", purpose=files.Purpose.USER_DATA, size_bytes=1
    )
    aged(tmp_path, f"{new.object_key}#1")
    assert purging.sweep_objects(maker, owned(maker, tmp_path.as_uri()), age=DAY, unused=timedelta(days=30)) == 1
    with pytest.raises(ServiceError, match="took too long"):
        files.create_file(session, tenant.id, new)


def test_a_sweep_locks_only_what_no_file_names(
    maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path, make_file: Make, statements: list[tuple[str, Any]]
) -> None:
    named = [make_file(object_key=files.new_object_key(tenant.id)).object_key for _ in range(3)]
    for key in (*named, files.new_object_key(tenant.id)):
        aged(tmp_path, key)
    local = owned(maker, tmp_path.as_uri())
    statements.clear()
    assert purging.sweep_objects(maker, local, age=DAY, unused=timedelta(days=30)) == 1
    assert sum("pg_try_advisory" in statement for statement, _ in statements) == 1


@pytest.fixture
def copy(
    maker: sessionmaker[Session], engine: Engine, new_database: Callable[[], str]
) -> Iterator[sessionmaker[Session]]:
    """Sessions of another database of the cluster, with the same tenants but without the later files."""
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
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 0, "it marks the store"
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 0
    assert caplog.text == ""
    assert purging.sweep_objects(copy, storage, age=DAY, unused=timedelta(days=30)) == 0
    assert storage.exists(named)
    assert "objects are not swept, another database sweeps this store" in caplog.text
    store_owner.adopt(copy, storage)
    assert purging.sweep_objects(copy, storage, age=DAY, unused=timedelta(days=30)) == 1
    caplog.clear()
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 0
    assert "adopt-storage" in caplog.text


def test_a_store_is_swept_from_the_second_time_on(maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path) -> None:
    """The first time marks it: if two databases do so at once, only one sweeps then."""
    aged(tmp_path, files.new_object_key(tenant.id))
    storage = Storage(tmp_path.as_uri())
    assert [purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) for _ in range(2)] == [0, 1]


def test_a_service_that_owns_nothing_may_ask_for_the_name_of_the_database(session: Session) -> None:
    assert standing_of(session).is_plain
    assert "/" in session.scalar(store_owner._NAME)


def test_read_documents_that_nobody_used_for_long_are_swept_and_those_of_deleted_tenants(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    other = create_tenant(session, "other")
    other.deleted_at = datetime.now(UTC)
    session.commit()

    def key(owner: Tenant, content: str) -> str:
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        return read_documents.key_of(owner.id, parsers="pdf 1", sha256=sha256, name=f"{content}.pdf")

    unused, used, theirs = key(tenant, "unused"), key(tenant, "used"), key(other, "theirs")
    aged(tmp_path, unused, age=31 * DAY)
    aged(tmp_path, f"{unused}#1", age=31 * DAY)
    aged(tmp_path, unused.removeprefix("prepared/"), age=31 * DAY)  # as written before the prefix existed
    aged(tmp_path, used, age=31 * DAY)
    aged(tmp_path, theirs, age=DAY)
    aged(tmp_path, f"{tenant.id}/documents/notes.txt", age=31 * DAY)
    storage = owned(maker, tmp_path.as_uri())
    assert read_documents.find(storage, used) == b"x"
    assert read_documents.find(storage, unused.removeprefix("prepared/")) == b"x", "which notes nothing"
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 4
    assert {found.name for found in storage.iter_objects()} == {used, f"{tenant.id}/documents/notes.txt", *OURS}
    assert read_documents.find(storage, unused) is None


def test_a_read_document_that_is_used_while_the_store_is_listed_stays(
    maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = read_documents.key_of(tenant.id, parsers="pdf 1", sha256="0" * 64, name="a.pdf")
    aged(tmp_path, key, age=31 * DAY)
    storage = owned(maker, tmp_path.as_uri())
    listed = list(storage.iter_objects())
    monkeypatch.setattr(Storage, "iter_objects", lambda _: iter(listed))
    assert read_documents.find(storage, key) == b"x"
    assert purging.sweep_objects(maker, storage, age=DAY, unused=timedelta(days=30)) == 0
    assert storage.exists(key)


def test_no_document_of_another_databases_store_is_swept(
    maker: sessionmaker[Session], tenant: Tenant, tmp_path: Path
) -> None:
    key = read_documents.key_of(tenant.id, parsers="pdf 1", sha256="0" * 64, name="a")
    aged(tmp_path, key, age=31 * DAY)
    aged(tmp_path, MARK)
    assert purging.sweep_objects(maker, Storage(tmp_path.as_uri()), age=DAY, unused=timedelta(days=30)) == 0
    assert (tmp_path / key).exists()
