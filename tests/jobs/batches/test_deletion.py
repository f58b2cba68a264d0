"""Tests of deletion: gone for its tenant at once and from the disk soon; bills and others' data stay."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import files
from jobs.accounts import budgets, keys, tenants
from jobs.audit.audit import audit
from jobs.batches import deletion, lifecycle
from jobs.batches.changing import rename
from jobs.batches.finalisation import finalise_batch
from jobs.batches.results import read_finished_lines
from jobs.batches.submission import CreateBatch
from jobs.batches.sweeps import finish_ready
from jobs.chunks import claiming, leasing
from jobs.chunks.recording import LineResult
from jobs.errors import AuthenticationError, ConflictError, GoneError, NotFoundError
from jobs.lines.output_lines import error_line, output_line
from jobs.retention import purging
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, Deletion, File, Result, Tenant
from tests.jobs.batches import control

LEASE = timedelta(seconds=20)
MONTH = timedelta(days=30)
MakeBatch = Callable[..., Batch]
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def other(session: Session) -> Tenant:
    tenant = tenants.create_tenant(session, "other")
    session.commit()
    return tenant


@pytest.fixture
def ran(session: Session, run: Callable[..., Batch]) -> MakeBatch:
    """Run the two lines of a batch, the second with an error, and leave it finalizing; keywords are its columns."""

    def ran(**columns: Any) -> Batch:
        batch = run(2, **columns)
        claim = claiming.claim_next(session, model="m", worker_id="w1", lease=LEASE)
        assert claim is not None
        good = output_line(batch.id, 0, "a0", status_code=200, body={})
        bad = error_line(batch.id, 1, "a1", code="too_long", message="too long")
        results = [
            LineResult(line_no=0, line=good, status_code=200, input_tokens=5, output_tokens=3),
            LineResult(line_no=1, line=bad, status_code=None),
        ]
        leasing.flush(session, claim, results, flush_no=0, lease=LEASE)
        leasing.complete(session, claim)
        finish_ready(session)
        session.commit()
        session.refresh(batch)
        return batch

    return ran


@pytest.fixture
def ended(session: Session, storage: Storage, ran: MakeBatch) -> MakeBatch:
    """Run a batch as `ran` does, to its end."""

    def ended(**columns: Any) -> Batch:
        batch = ran(**columns)
        control.finalise(session, storage, batch.id)
        session.commit()
        session.refresh(batch)
        assert batch.output_file_id
        assert batch.error_file_id
        return batch

    return ended


def entries(session: Session) -> set[tuple[str, str, str]]:
    return {(row.kind, row.subject_id, row.deleted_by) for row in session.scalars(select(Deletion))}


def purge(maker: sessionmaker[Session], storage: Storage) -> None:
    deletion.delete_left(maker)
    purging.purge_results(maker, retention=MONTH)
    purging.purge_files(maker, storage)


def is_clean(maker: sessionmaker[Session]) -> bool:
    with maker() as fresh:
        return audit(fresh) == []


def holds(session: Session, storage: Storage, batch: Batch) -> tuple[int, list[bool]]:
    """Count a batch's results; return which of its input, output and error objects exist."""
    session.rollback()
    ids = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
    keys = [session.scalars(select(File.object_key).where(File.id == file_id)).one() for file_id in ids]
    rows = session.scalars(select(Result.line_no).where(Result.batch_id == batch.id)).all()
    return len(rows), [storage.exists(key) for key in keys]


@pytest.mark.parametrize("kind", ["output_file_id", "error_file_id"])
def test_with_its_output_or_error_file_go_the_results_of_a_batch(
    session: Session, maker: sessionmaker[Session], storage: Storage, ended: MakeBatch, kind: str
) -> None:
    batch, kept = ended(), ended()
    file_id = getattr(batch, kind)
    files.delete_file(session, batch.tenant_id, file_id, by="key_1")
    session.commit()
    with pytest.raises(GoneError, match="deleted by 'key_1'") as caught:
        read_finished_lines(session, batch)
    assert caught.value.code == "results_deleted"
    assert lifecycle.get_batch(session, batch.tenant_id, batch.id).num_completed == 1
    assert entries(session) == {("file", file_id, "key_1"), ("results", batch.id, "key_1")}
    session.commit()
    purge(maker, storage)
    is_output = kind == "output_file_id"
    assert holds(session, storage, batch) == (0, [True, not is_output, is_output])
    assert holds(session, storage, kept) == (2, [True, True, True])
    assert is_clean(maker)


def test_a_deleted_batch_is_gone_and_its_bill_stays(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, storage: Storage, ended: MakeBatch
) -> None:
    batch, kept = ended(request_metadata={"a": "b"}), ended()
    spent = budgets.quota(session, tenant.id).spent
    deletion.delete_batch(session, tenant.id, batch.id, by="key_1")
    session.commit()
    session.refresh(batch)
    for call in (lifecycle.get_batch, lifecycle.cancel_batch):
        with pytest.raises(NotFoundError):
            call(session, tenant.id, batch.id)
    with pytest.raises(NotFoundError):
        deletion.delete_batch(session, tenant.id, batch.id, by="key_1")
    assert [found.id for found in lifecycle.list_batches(session, tenant.id).data] == [kept.id]
    for file_id in (batch.output_file_id, batch.error_file_id):
        with pytest.raises(NotFoundError):
            files.get_file(session, tenant.id, str(file_id))
    assert files.get_file(session, tenant.id, batch.input_file_id), "other batches may read it"
    assert batch.request_metadata is None
    named = {("batch", batch.id), ("results", batch.id), ("file", batch.output_file_id), ("file", batch.error_file_id)}
    assert entries(session) == {(*name, "key_1") for name in named}
    session.commit()
    purge(maker, storage)
    assert holds(session, storage, batch) == (0, [True, False, False])
    assert holds(session, storage, kept) == (2, [True, True, True])
    assert budgets.quota(session, tenant.id).spent == spent == 16
    assert session.scalar(text("SELECT count(*) FROM ledger WHERE batch_id = :id"), {"id": batch.id}) == 1
    assert is_clean(maker)


def test_a_batch_that_runs_cannot_be_deleted(session: Session, tenant: Tenant, run: Callable[..., Batch]) -> None:
    batch = run(2)
    with pytest.raises(ConflictError, match=r"in_progress.*Cancel it") as caught:
        deletion.delete_batch(session, tenant.id, batch.id, by="key_1")
    assert caught.value.code == "batch_not_deletable"


def test_a_batch_that_is_writing_its_files_cannot_be_deleted(
    session: Session,
    maker: sessionmaker[Session],
    tenant: Tenant,
    *,
    storage: Storage,
    ran: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its end is committed after its files are locked and before the batch itself is."""
    finalizing = ran()
    lock_batch = lifecycle.lock_batch

    def end_first(own: Session, batch_id: str) -> Batch | None:
        if own is session:
            finalise_batch(maker, storage, batch_id, settings=Settings())
        return lock_batch(own, batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "lock_batch", end_first)
        with pytest.raises(ConflictError, match="finalizing"):
            deletion.delete_batch(session, tenant.id, finalizing.id, by="key_1")
    finalise_batch(maker, storage, finalizing.id, settings=Settings())
    keys = deletion.delete_batch(session, tenant.id, finalizing.id, by="key_1")
    assert len([key for key in keys if not key.endswith(".lines")]) == 2, "seen afresh"


def test_another_tenants_batch_cannot_be_deleted(session: Session, other: Tenant, ended: MakeBatch) -> None:
    with pytest.raises(NotFoundError):
        deletion.delete_batch(session, other.id, ended().id, by="key_1")


def test_an_idempotency_key_of_a_deleted_batch_makes_a_new_one(
    session: Session, tenant: Tenant, settings: Settings, ended: MakeBatch
) -> None:
    batch = ended(idempotency_key="k")
    deletion.delete_batch(session, tenant.id, batch.id, by="key_1")
    wanted = CreateBatch(
        input_file_id=batch.input_file_id,
        endpoint=batch.endpoint,
        completion_window="24h",
        idempotency_key="k",
    )
    assert lifecycle.create_batch(session, tenant, wanted, settings).id != batch.id


def test_a_deleted_tenant_loses_everything_but_its_bill_and_others_nothing(
    session: Session,
    maker: sessionmaker[Session],
    tenant: Tenant,
    *,
    other: Tenant,
    storage: Storage,
    ended: MakeBatch,
    run: Callable[..., Batch],
) -> None:
    theirs, batch = ended(tenant_id=other.id), ended()
    _, secret = keys.create_key(session, tenant.id)
    running, theirs_running = run(2), run(2, tenant_id=other.id)
    deletion.delete_tenant(session, tenant, by="operator")
    session.commit()
    with pytest.raises(AuthenticationError):
        keys.authenticate(session, secret)
    for name in ("acme", tenant.id):
        with pytest.raises(NotFoundError):
            tenants.find_tenant(session, name)
    assert tenants.create_tenant(session, "acme").id != tenant.id, "its name is free"
    session.commit()
    purge(maker, storage)
    assert holds(session, storage, batch) == (0, [False, False, False])
    assert session.scalar(text("SELECT state FROM batch WHERE id = :id"), {"id": running.id}) == "cancelling"
    session.rollback()
    finalise_batch(maker, storage, running.id, settings=Settings())
    session.commit()
    session.refresh(running)
    purge(maker, storage)
    left = text("SELECT count(*) FROM file WHERE tenant_id = :id AND purged_at IS NULL")
    assert session.scalar(left, {"id": tenant.id}) == 0
    assert session.scalar(text("SELECT count(*) FROM result WHERE batch_id = :id"), {"id": running.id}) == 0
    assert {(kind, by) for kind, _, by in entries(session)} == {
        (kind, "operator") for kind in ("tenant", "batch", "results", "file")
    }
    assert holds(session, storage, theirs) == (2, [True, True, True])
    assert lifecycle.get_batch(session, other.id, theirs_running.id).state == "in_progress"
    assert budgets.quota(session, tenant.id).spent == 8
    session.rollback()
    assert is_clean(maker)


def rename_to(maker: sessionmaker[Session], batch: Batch, name: str) -> None:
    with maker.begin() as other:
        rename(other, batch.tenant_id, batch.id, name)


def test_a_batch_that_is_deleted_meanwhile_gets_no_name(
    session: Session, maker: sessionmaker[Session], ended: MakeBatch
) -> None:
    batch = ended(name="before")
    with ThreadPoolExecutor(1) as executor, maker() as deleting:
        deletion.delete_batch(deleting, batch.tenant_id, batch.id, by="key_1")
        renaming = executor.submit(rename_to, maker, batch, "after")
        while not session.scalar(text(WAITING)):
            session.rollback()
        deleting.commit()
        with pytest.raises(NotFoundError):
            renaming.result(timeout=10)
    session.rollback()
    assert session.scalars(select(Batch.name).where(Batch.id == batch.id)).one() is None
