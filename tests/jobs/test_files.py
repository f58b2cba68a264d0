from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs import deletions, files
from jobs.accounts import tenants
from jobs.deletions import Deleted
from jobs.errors import InputError, NotFoundError, ServiceError
from jobs.lines.input_estimate import InputEstimate
from jobs.tables import Tenant

Make = Callable[..., Any]
ESTIMATE = InputEstimate(num_requests=3, estimated_input_tokens=20, estimated_output_tokens=40)
START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_file_names_its_object_with_its_estimate(session: Session, tenant: Tenant) -> None:
    key = files.new_object_key(tenant.id)
    new = files.NewFile(
        object_key=key, filename="in.jsonl", purpose="batch", size_bytes=90, estimate=ESTIMATE,
        expires_after_seconds=3600,
    )  # fmt: skip
    made = files.create_file(session, tenant.id, new)
    session.commit()
    found = files.get_file(session, tenant.id, made.id)
    assert (found.object_key, found.size_bytes, found.purpose, found.filename) == (key, 90, "batch", "in.jsonl")
    assert (found.num_requests, found.estimated_input_tokens, found.estimated_output_tokens) == (3, 20, 40)
    assert found.expires_at == found.created_at + timedelta(hours=1)


def test_files_made_together_are_in_their_order_and_none_is_made_where_an_object_was_swept(
    session: Session, tenant: Tenant
) -> None:
    def new(name: str, **values: Any) -> files.NewFile:
        key = files.new_object_key(tenant.id)
        return files.NewFile(object_key=key, filename=name, size_bytes=1, **({"purpose": "user_data"} | values))

    lines, rows = new("lines", purpose="batch", estimate=ESTIMATE), new("rows", expires_after_seconds=60)
    made = files.create_files(session, tenant.id, [lines, rows])
    assert [(file.filename, file.object_key) for file in made] == [
        ("lines", lines.object_key),
        ("rows", rows.object_key),
    ]
    assert [file.num_requests for file in made] == [3, None]
    assert [file.expires_at for file in made] == [None, made[1].created_at + timedelta(seconds=60)]
    kept, swept = new("kept"), new("swept")
    deletions.record(session, Deleted.OBJECT, [(swept.object_key, tenant.id)], by=deletions.SWEEP)
    with pytest.raises(ServiceError, match=swept.object_key):
        files.create_files(session, tenant.id, [kept, swept])


def test_object_keys_are_never_given_twice(tenant: Tenant) -> None:
    assert len({files.new_object_key(tenant.id) for _ in range(1000)}) == 1000


def test_an_expired_deleted_or_foreign_file_is_not_found(session: Session, tenant: Tenant, make_file: Make) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    other = tenants.create_tenant(session, "other")
    for file in (make_file(expires_at=past), make_file(deleted_at=past), make_file(tenant_id=other.id)):
        with pytest.raises(NotFoundError, match=file.id):
            files.get_file(session, tenant.id, file.id)
        with pytest.raises(NotFoundError, match=file.id):
            files.delete_file(session, tenant.id, file.id, by="key_1")
    assert files.list_files(session, tenant.id).data == []


def test_a_file_is_there_until_it_expires(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file(expires_at=datetime.now(UTC) + timedelta(minutes=1))
    assert files.get_file(session, tenant.id, file.id).id == file.id


def test_deleting_twice_is_not_found(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file()
    files.delete_file(session, tenant.id, file.id, by="key_1")
    with pytest.raises(NotFoundError):
        files.delete_file(session, tenant.id, file.id, by="key_1")


@pytest.mark.parametrize("order", ["desc", "asc"])
def test_pages_run_in_either_order_and_know_their_end(
    session: Session, tenant: Tenant, make_file: Make, order: str
) -> None:
    made = [make_file(created_at=START + timedelta(seconds=second)).id for second in range(5)]
    expected = made if order == "asc" else made[::-1]
    for limit in (1, 2, 5, 6):
        seen: list[str] = []
        has_more = True
        while has_more:
            page = files.list_files(session, tenant.id, after=seen[-1] if seen else None, limit=limit, order=order)
            seen += [file.id for file in page.data]
            has_more = page.has_more
        assert seen == expected


def test_a_purpose_selects(session: Session, tenant: Tenant, make_file: Make) -> None:
    make_file()
    output = make_file(purpose="batch_output")
    page = files.list_files(session, tenant.id, purpose="batch_output")
    assert [file.id for file in page.data] == [output.id]


def test_a_page_goes_on_after_an_object_that_was_deleted_meanwhile(
    session: Session, tenant: Tenant, make_file: Make
) -> None:
    made = [make_file(created_at=START + timedelta(seconds=second)).id for second in range(4)]
    first = files.list_files(session, tenant.id, limit=2)
    for file in first.data:
        files.delete_file(session, tenant.id, file.id, by="key_1")
    rest = files.list_files(session, tenant.id, after=first.data[-1].id, limit=2)
    assert [file.id for file in rest.data] == [made[1], made[0]]


def test_an_unknown_cursor_or_limit_is_refused(session: Session, tenant: Tenant, make_file: Make) -> None:
    other = tenants.create_tenant(session, "other")
    for after in ("file_nowhere", make_file(tenant_id=other.id).id):
        with pytest.raises(InputError, match="none of your objects") as caught:
            files.list_files(session, tenant.id, after=after)
        assert caught.value.param == "after"
    with pytest.raises(InputError, match="limit is 0"):
        files.list_files(session, tenant.id, limit=0)


def test_expired_files_are_purged_once_no_live_batch_reads_them(
    session: Session, make_file: Make, make_batch: Make
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    free, in_use, was_used = (make_file(expires_at=past) for _ in range(3))
    make_batch(input_file_id=in_use.id, state="in_progress")
    make_batch(input_file_id=was_used.id, state="completed")
    make_file()
    assert files.delete_expired(session, limit=10) == 2
    due = files.due_for_purge(session, limit=10)
    assert due.keys() == {free.id, was_used.id}
    files.note_purged(session, gone=due, refused=(), again=timedelta(0))
    assert files.due_for_purge(session, limit=10) == {}


SLOW_NOW = """
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN pg_catalog.now(); END'
"""


@pytest.mark.changes_schema
def test_a_batch_accepted_while_the_purge_looks_for_files_keeps_its_input(
    session: Session, maker: sessionmaker[Session], make_file: Make, make_batch: Make
) -> None:
    file = make_file(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    num_expired: list[int] = []

    def purge() -> None:
        with maker.begin() as own:
            own.execute(text("SET LOCAL search_path = public, pg_catalog"))
            num_expired.append(files.delete_expired(own, limit=10))

    session.execute(text(SLOW_NOW))
    session.commit()
    with maker.begin() as holder:
        holder.execute(text("SELECT pg_advisory_xact_lock(1)"))
        thread = threading.Thread(target=purge)
        thread.start()
        while not session.scalar(text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")):
            assert thread.is_alive()
            session.rollback()
        make_batch(input_file_id=file.id, state="in_progress")
    thread.join()
    assert num_expired == [0]


def test_a_deleted_file_is_purged_until_its_object_is_known_to_be_gone(
    session: Session, tenant: Tenant, make_file: Make
) -> None:
    kept, file = make_file(), make_file()
    files.delete_file(session, tenant.id, file.id, by="key_1")
    deleted_at = file.deleted_at
    due = files.due_for_purge(session, limit=10)
    assert due == {file.id: [file.object_key]}
    files.note_purged(session, gone=due, refused=(), again=timedelta(0))
    assert files.due_for_purge(session, limit=10) == {}
    assert (file.deleted_at, kept.purged_at) == (deleted_at, None)
