"""What an operator sees at a glance: who waits and who runs, and what is to be reviewed."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import tenants
from jobs.overview import reviewing, shares
from jobs.tables import Batch, Chunk


def test_lines_that_workers_have_are_told_from_those_that_wait_for_one(
    session: Session, make_batch: Callable[..., Batch], make_chunk: Callable[..., Chunk]
) -> None:
    other = tenants.create_tenant(session, "other", weight=3.0).id
    common = {"state": "in_progress", "model": "m"}
    mine = make_batch(**common, num_requests=10, num_completed=2, num_failed=1)
    make_chunk(mine, state="leased", num_requests=4)
    make_batch(**common, num_requests=5, waits_for_tokens=100)
    make_batch(tenant_id=other, **common, num_requests=20)
    make_batch(tenant_id=other, state="completed", model="m", num_requests=9, num_completed=9)
    found = [(one.name, one.num_leased, one.num_ready, one.due) for one in shares.by_tenant(session)]
    assert found == [("other", 0, 20, 0.75), ("acme", 4, 3, 0.25)]


def test_lines_that_have_ended_in_a_chunk_take_no_others_place(
    session: Session, make_batch: Callable[..., Batch], make_chunk: Callable[..., Chunk]
) -> None:
    common = {"state": "in_progress", "model": "m"}
    make_chunk(make_batch(**common, num_requests=512, num_completed=500), state="leased", num_requests=512)
    make_batch(**common, num_requests=400)
    waiting = make_batch(**common, num_requests=30, waits_for_tokens=100)
    make_chunk(waiting, state="leased", num_requests=10)
    [found] = shares.by_tenant(session)
    assert (found.num_leased, found.num_ready) == (22, 400)


def test_values_that_nobody_has_decided_are_counted_of_the_tenant_or_of_all(session: Session) -> None:
    owners = [tenants.create_tenant(session, name).id for name in ("one", "two")]
    for number, owner in enumerate(owners, start=1):
        session.execute(text(_EXTRACTION), {"id": f"extr_{number}", "tenant_id": owner, "number": number})
        session.execute(text(_REVIEWS), {"id": f"extr_{number}", "tenant_id": owner, "number": number})
    mine, every = reviewing.open_reviews(session, owners[1]), reviewing.open_reviews(session, None)
    assert (mine.num_open, mine.extraction_id) == (2, "extr_2")
    assert (every.num_open, every.extraction_id) == (3, "extr_2"), "it waits longest"
    assert reviewing.open_reviews(session, "tenant_none").num_open == 0


_EXTRACTION = """
    WITH owned AS (
        INSERT INTO collection (id, tenant_id, name) VALUES ('coll_' || :id, :tenant_id, 'papers') RETURNING id
    )
    INSERT INTO extraction (id, tenant_id, collection_id, model, plan, again, parquet, priority, completion_window,
        fingerprint, state, expires_at, ended_at, num_to_review)
    SELECT :id, :tenant_id, id, 'm', '{}', FALSE, FALSE, 'normal', '24h', '', 'completed', now(),
        now() - interval '1 hour' * :number, 0
    FROM owned
"""
# One is decided; all are of a sample of what was sure, which is not counted in `num_to_review`.
_REVIEWS = """
    INSERT INTO review (id, extraction_id, tenant_id, document_id, document, path, place, reason, urgency, evidence,
        verdict, decided_at)
    SELECT 'rev_' || :id || n, :id, :tenant_id, 'doc', 'paper.pdf', 'total', '["total"]', 'doubt', 0.5, '{}',
        CASE WHEN n = 0 THEN 'accept' END, CASE WHEN n = 0 THEN now() END
    FROM generate_series(0, CAST(:number AS integer)) AS n
"""
