"""Tests of what becomes of a batch and of its lookups when either is stopped, lost or broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from features.retrieval.purging import purge_fills
from features.retrieval.tables import PassageFill
from flows.tables import FlowNode
from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.batches import following, lifecycle, sweeps
from jobs.batches.deletion import delete_batch
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import Batch, File, Tenant
from tests.features.retrieval.fills.finding import Finding, line

Submit = Callable[..., Batch]


def let_time_pass(session: Session) -> None:
    """Let pauses after failed tries end, and the time between two looks at a missing input."""
    session.execute(text("UPDATE flow SET look_at = NULL"))
    missed = "input_missed_at = input_missed_at - interval '1 hour'"
    session.execute(text(f"UPDATE batch SET deferred_until = NULL, {missed}"))
    session.commit()


def state_of(session: Session, batch_id: str) -> str:
    session.expire_all()
    return session.get_one(Batch, batch_id).state


def key_of(session: Session, file_id: str | None) -> str:
    assert file_id is not None
    return session.get_one(File, file_id).object_key


def test_a_batch_that_expires_cancels_its_lookups(finding: Finding, submit: Submit, session: Session) -> None:
    batch = submit([line("a")])
    finding.validate(batch.id)
    (lookup_id,) = finding.lookup_ids(batch.id)
    session.execute(text("UPDATE batch SET expires_at = now() WHERE id = :id"), {"id": batch.id})
    session.commit()
    sweeps.expire_overdue(session)
    session.commit()
    assert state_of(session, lookup_id) == BatchState.CANCELLING
    assert finding.finalise(batch.id) is BatchState.EXPIRED
    finding.finalise(lookup_id)
    finding.advance(batch.id)
    assert session.scalars(select(PassageFill.state)).one() == "cancelled"


@pytest.mark.parametrize("is_found_again", [True, False])
def test_results_that_the_store_lacks_are_waited_for_and_then_lost(
    finding: Finding, submit: Submit, session: Session, storage: Storage, is_found_again: bool
) -> None:
    batch = submit([line("a"), line("plain", None)])
    finding.validate(batch.id)
    (lookup_id,) = finding.lookup_ids(batch.id)
    finding.work_off(lookup_id)
    key = key_of(session, session.get_one(Batch, lookup_id).output_file_id)
    content = b"".join(storage.iter_chunks(key))
    storage.delete(key)
    for number in range(6):
        if is_found_again and number == 3:
            storage.put(key, content)
        finding.advance(batch.id)
        let_time_pass(session)
    assert finding.validate(batch.id) is BatchState.IN_PROGRESS
    codes = {name: code for name, (code, _) in finding.errors(batch.id).items()}
    assert codes == ({} if is_found_again else {"a": "context_unavailable"})


def test_an_input_that_is_missing_for_a_while_is_filled_with_what_was_looked_up(
    finding: Finding, submit: Submit, session: Session, storage: Storage
) -> None:
    batch = submit([line("a")])
    finding.validate(batch.id)
    (lookup_id,) = finding.lookup_ids(batch.id)
    finding.work_off(lookup_id)
    key = key_of(session, batch.input_file_id)
    content = b"".join(storage.iter_chunks(key))
    storage.delete(key)
    finding.advance(batch.id)
    assert finding.validate(batch.id) is None
    storage.put(key, content)
    let_time_pass(session)
    assert finding.validate(batch.id) is BatchState.VALIDATING
    assert finding.validate(batch.id) is BatchState.IN_PROGRESS
    assert finding.lookup_ids(batch.id) == [lookup_id]
    assert finding.errors(batch.id) == {}


def test_a_lookup_that_fails_unexpectedly_fails_the_batch_after_some_tries(
    finding: Finding, submit: Submit, session: Session, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    batch = submit([line("a")])
    monkeypatch.setattr("features.retrieval.fills.recipe.Asking", breaks)
    finding.validate(batch.id)
    for _ in range(5):
        assert state_of(session, batch.id) == BatchState.VALIDATING
        let_time_pass(session)
        finding.advance(batch.id)
    assert state_of(session, batch.id) == BatchState.FAILED
    assert [error["code"] for error in session.get_one(Batch, batch.id).errors or []] == ["context_unavailable"]
    assert budgets.quota(session, tenant.id).reserved == 0
    session.commit()
    assert audit(session) == []


def test_a_batch_whose_lookups_have_begun_goes_on_where_the_earlier_one_is_deleted(
    finding: Finding, submit: Submit, session: Session
) -> None:
    earlier = submit([line("a", None)])
    session.execute(text("UPDATE batch SET state = 'completed' WHERE id = :id"), {"id": earlier.id})
    batch = submit([line("a")], after_batch_id=earlier.id)
    finding.validate(batch.id)
    delete_batch(session, batch.tenant_id, earlier.id, by="tenant")
    session.commit()
    assert following.fail_followers(session) == []
    finding.look_up(batch.id)
    assert following.fail_followers(session) == []
    assert [due.batch_id for due in sweeps.due_batches(session)] == [batch.id]
    assert finding.validate(batch.id) is BatchState.IN_PROGRESS


def test_deleting_a_lookup_deletes_its_questions_and_rows_go_with_the_batch(
    finding: Finding, submit: Submit, session: Session
) -> None:
    batch = submit([line("a")])
    finding.prepare(batch.id)
    (lookup_id,) = finding.lookup_ids(batch.id)
    questions = session.get_one(Batch, lookup_id).input_file_id
    delete_batch(session, batch.tenant_id, lookup_id, by="tenant")
    assert session.get_one(File, questions).deleted_at is not None
    session.commit()
    assert purge_fills(finding.maker) == 0
    lifecycle.cancel_batch(session, batch.tenant_id, batch.id)
    session.commit()
    finding.finalise(batch.id)
    delete_batch(session, batch.tenant_id, batch.id, by="tenant")
    session.commit()
    assert purge_fills(finding.maker) == 1
    assert session.scalars(select(FlowNode)).all() == []
