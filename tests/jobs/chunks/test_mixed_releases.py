"""Workers and dispatchers of the release before this one know no cover: what they leave behind holds no token."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.batches import lifecycle
from jobs.chunks import covering, leasing
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.jobs.batches.control import finalise
from tests.jobs.chunks.builders import Run, claim_first


def test_what_is_covered_after_an_older_worker_has_billed_grows_batch_and_budget_alike(
    session: Session, run: Run, tenant: Tenant
) -> None:
    budgets.set_limit(session, tenant.id, 10_000)
    batch = run(4, reserved_tokens=1000)
    claim = claim_first(session, batch)
    covering.cover(session, claim, [800], covered=0)
    # What an older worker's flush of 600 tokens writes: it takes them from the reservation, whatever is covered.
    session.execute(text("UPDATE batch SET reserved_tokens = 400, covered_tokens = 800"))
    session.execute(text("UPDATE budget SET reserved_tokens = 400, spent_tokens = 600"))
    assert covering.cover(session, claim, [100], covered=800).tokens == 100
    session.refresh(batch)
    assert (batch.reserved_tokens, batch.covered_tokens) == (500, 900)
    assert budgets.quota(session, tenant.id).reserved == 500
    leasing.release(session, claim)
    assert budgets.release(session, batch) == 500
    assert budgets.quota(session, tenant.id).reserved == 0


def test_a_chunk_that_an_older_release_has_ended_leaves_nothing_reserved_on_its_batch(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run, tenant: Tenant
) -> None:
    budgets.set_limit(session, tenant.id, 10_000)
    batch = run(4, reserved_tokens=1000)
    covering.cover(session, claim_first(session, batch), [800], covered=0)
    lifecycle.cancel_batch(session, tenant.id, batch.id)
    session.execute(text("UPDATE chunk SET state = 'withdrawn', worker_id = NULL, lease_until = NULL"))
    assert finalise(session, storage, batch.id) == "cancelled"
    session.commit()
    assert budgets.quota(session, tenant.id).reserved == 0
    with maker() as fresh:
        assert audit(fresh) == []
