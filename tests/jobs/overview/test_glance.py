"""Tests of an operator's overview: what waits, what runs, and what needs review."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import tenants
from jobs.overview import backlog, listing, reviewing, shares
from jobs.overview.listing import PAGE, BatchFilter, Shown
from jobs.tables import Batch, Chunk, Forecast


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
    found = reviewing.open_reviews(session, [*owners, "tenant_none", None])
    mine, every = found[owners[1]], found[None]
    assert found[owners[0]].num_open == 1
    assert (mine.num_open, mine.extraction_id) == (2, "extr_2")
    assert (every.num_open, every.extraction_id) == (3, "extr_2"), "it waits longest"
    assert found["tenant_none"].num_open == 0


def test_batches_are_told_of_each_tenant_and_of_all(session: Session, make_batch: Callable[..., Batch]) -> None:
    other, nobody = (tenants.create_tenant(session, name).id for name in ("other", "nobody"))
    common = {"state": "in_progress", "model": "m", "num_requests": 10}
    mine, theirs = make_batch(**common), make_batch(tenant_id=other, **common, priority="urgent")
    begun = make_batch(**common, num_completed=4, num_failed=1)
    owners = [mine.tenant_id, other, nobody, None]
    waiting = backlog.waiting_longest(session, owners)
    assert {owner: set(ids) for owner, ids in waiting.items()} == {
        mine.tenant_id: {mine.id}, other: {theirs.id}, nobody: set(), None: {mine.id, theirs.id},
    }  # fmt: skip
    failed = backlog.failed_lately(session, owners)
    assert failed == {mine.tenant_id: [begun.id], other: [], nobody: [], None: [begun.id]}
    classes = backlog.by_class(session, owners)
    found = {owner: [(one.priority, one.num_lines) for one in of_owner] for owner, of_owner in classes.items()}
    assert found == {
        mine.tenant_id: [("normal", 15)], other: [("urgent", 10)], nobody: [], None: [("urgent", 10), ("normal", 15)],
    }  # fmt: skip


def test_a_class_is_expected_to_end_with_the_last_of_its_batches(
    session: Session, make_batch: Callable[..., Batch]
) -> None:
    other = tenants.create_tenant(session, "other").id
    common = {"state": "in_progress", "model": "m"}
    short, long, unknown = (make_batch(**common) for _ in range(3))
    theirs, ended = make_batch(tenant_id=other, **common), make_batch(state="completed", model="m")
    for position, (batch, seconds) in enumerate(
        [(short, 60), (long, 900), (unknown, None), (theirs, 300), (ended, 5e5)]
    ):
        session.add(Forecast(batch_id=batch.id, position=position, seconds=seconds))
    session.flush()
    found = backlog.seconds_by_class(session, [short.tenant_id, other, "tenant_none", None])
    assert {owner: {name: round(left, -1) for name, left in classes.items()} for owner, classes in found.items()} == {
        short.tenant_id: {"normal": 900}, other: {"normal": 300}, "tenant_none": {}, None: {"normal": 900},
    }  # fmt: skip


def test_a_page_of_each_tenant_is_found_as_the_page_of_one(session: Session, make_batch: Callable[..., Batch]) -> None:
    other = tenants.create_tenant(session, "other").id
    for _ in range(PAGE + 2):
        last = make_batch(state="in_progress", model="m")
    make_batch(tenant_id=other, state="completed", model="m", num_failed=2)
    owners = [last.tenant_id, other, None]
    for wanted in (BatchFilter(), BatchFilter(shown=Shown.FAILED), BatchFilter(before=last.id), BatchFilter(model="x")):
        found = listing.progress(session, owners, wanted)
        for owner in owners:
            page, has_more = listing.list_batches(session, owner, wanted)
            assert [row.id for row in found[owner][:PAGE]] == [batch.id for batch in page]
            assert (len(found[owner]) > PAGE) == has_more


_EXTRACTION = """
    WITH owned AS (
        INSERT INTO collection (id, tenant_id, name) VALUES ('coll_' || :id, :tenant_id, 'papers') RETURNING id
    ), flows AS (
        INSERT INTO flow (id, tenant_id, recipe, state, ended_at)
        VALUES (:id, :tenant_id, 'extraction', 'completed', now() - interval '1 hour' * :number)
    )
    INSERT INTO extraction (id, collection_id, model, plan, again, parquet, priority, completion_window, expires_at)
    SELECT :id, id, 'm', '{}', FALSE, FALSE, 'normal', '24h', now() FROM owned
"""
# One is decided; all are of a sample of confident answers, which `num_to_review` does not count.
_REVIEWS = """
    INSERT INTO review (id, extraction_id, tenant_id, document_id, document, path, place, reason, urgency, evidence,
        verdict, decided_at)
    SELECT 'rev_' || :id || n, :id, :tenant_id, 'doc', 'paper.pdf', 'total', '["total"]', 'doubt', 0.5, '{}',
        CASE WHEN n = 0 THEN 'accept' END, CASE WHEN n = 0 THEN now() END
    FROM generate_series(0, CAST(:number AS integer)) AS n
"""
