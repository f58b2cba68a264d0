from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import files, partitions
from jobs.accounts import budgets, tenants
from jobs.batches import lifecycle
from jobs.batches.submission import CreateBatch
from jobs.errors import ConflictError, InputError, NotFoundError, OverBudgetError, TooLargeError
from jobs.retention import purging
from jobs.settings import Settings
from jobs.states import BatchState, ChunkState, IllegalMoveError, InvalidLines, Priority
from jobs.tables import Batch, File, Tenant

Make = Callable[..., Any]
CHAT = "/v1/chat/completions"
SETTINGS = Settings(max_batch_lines=1000, max_file_bytes=10_000)


def wanted(file: File, **changes: Any) -> CreateBatch:
    return CreateBatch(**{"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | changes)


def create(session: Session, tenant: Tenant, file: File, **changes: Any) -> Batch:
    return lifecycle.create_batch(session, tenant, wanted(file, **changes), SETTINGS)


# Creating


def test_a_batch_starts_validating_with_its_window_and_reservation(
    session: Session, tenant: Tenant, make_file: Make
) -> None:
    file = make_file(num_requests=10, estimated_input_tokens=100, estimated_output_tokens=200)
    batch = create(
        session, tenant, file, completion_window="2h", metadata={"a": "b"}, priority=Priority.URGENT,
        invalid_lines=InvalidLines.SKIP, output_expires_after_seconds=3600,
    )  # fmt: skip
    assert batch.state == BatchState.VALIDATING
    assert batch.expires_at - batch.created_at == timedelta(hours=2)
    assert (batch.reserved_tokens, budgets.quota(session, tenant.id).reserved) == (300, 300)
    assert (batch.request_metadata, batch.priority, batch.invalid_lines) == ({"a": "b"}, "urgent", "skip")
    assert batch.output_expires_after_seconds == 3600
    assert batch.model is None


def test_creating_makes_the_days_result_partition(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, make_file: Make
) -> None:
    purging.drop_days(maker, retention=timedelta(days=-2))
    assert partitions.partition_days(session) == []
    batch = create(session, tenant, make_file())
    assert partitions.partition_days(session) == [partitions.batch_day(batch.created_at)]


def test_more_lines_than_allowed_are_refused_with_both_numbers(
    session: Session, tenant: Tenant, make_file: Make
) -> None:
    assert create(session, tenant, make_file(num_requests=1000)).id
    with pytest.raises(TooLargeError, match=r"1,001 requests and a batch may have 1,000") as caught:
        create(session, tenant, make_file(num_requests=1001))
    assert (caught.value.param, caught.value.code) == ("input_file_id", "too_many_tasks")


def test_a_larger_file_than_allowed_is_refused_with_both_numbers(
    session: Session, tenant: Tenant, make_file: Make
) -> None:
    with pytest.raises(TooLargeError, match=r"10,001 bytes and a batch may have 10,000"):
        create(session, tenant, make_file(size_bytes=10_001))


def test_an_empty_file_is_accepted_and_left_to_validation(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file(num_requests=0, size_bytes=0, estimated_input_tokens=0, estimated_output_tokens=0)
    assert create(session, tenant, file).reserved_tokens == 0


def test_work_over_budget_is_refused_and_leaves_nothing(session: Session, tenant: Tenant, make_file: Make) -> None:
    budgets.set_limit(session, tenant.id, 500)
    file = make_file(estimated_input_tokens=100, estimated_output_tokens=200)
    create(session, tenant, file)
    session.commit()
    with pytest.raises(OverBudgetError) as caught:
        create(session, tenant, file, completion_window="2h")
    session.rollback()
    error = caught.value
    assert (error.limit, error.spent, error.reserved, error.needed) == (500, 0, 300, 300)
    assert session.scalars(select(Batch.reserved_tokens)).all() == [300]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"output_expires_after_seconds": 3599}, "output_expires_after.seconds"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(
    session: Session, tenant: Tenant, make_file: Make, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(InputError) as caught:
        create(session, tenant, make_file(), **changes)
    assert (caught.value.param, caught.value.status) == (param, 400)


def test_a_file_of_another_purpose_is_refused(session: Session, tenant: Tenant, make_file: Make) -> None:
    with pytest.raises(InputError, match="purpose 'user_data'"):
        create(session, tenant, make_file(purpose="user_data", num_requests=None))


def test_a_file_that_is_missing_deleted_expired_or_anothers_is_not_found(
    session: Session, tenant: Tenant, make_file: Make
) -> None:
    other = tenants.create_tenant(session, "other")
    past = datetime.now(UTC) - timedelta(seconds=1)
    for file in (
        File(id="file_nowhere"),
        make_file(tenant_id=other.id),
        make_file(expires_at=past),
        make_file(deleted_at=past),
    ):
        with pytest.raises(NotFoundError) as caught:
            create(session, tenant, file)
        assert caught.value.param == "input_file_id"


# Creating twice


def test_the_same_key_and_body_return_the_same_batch(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file()
    first = create(session, tenant, file, idempotency_key="k")
    assert create(session, tenant, file, idempotency_key="k").id == first.id
    assert create(session, tenant, file, idempotency_key="k", retry_count=2).id == first.id
    assert create(session, tenant, file, idempotency_key="l").id != first.id
    assert budgets.quota(session, tenant.id).reserved == 600


def test_the_same_key_with_another_body_is_a_conflict(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file()
    first = create(session, tenant, file, idempotency_key="k")
    with pytest.raises(ConflictError, match=first.id) as caught:
        create(session, tenant, file, idempotency_key="k", completion_window="2h")
    assert caught.value.code == "idempotency_key_reused"


def test_a_key_belongs_to_its_tenant(session: Session, tenant: Tenant, make_file: Make) -> None:
    other = tenants.create_tenant(session, "other")
    first = create(session, tenant, make_file(), idempotency_key="k")
    assert create(session, other, make_file(tenant_id=other.id), idempotency_key="k").id != first.id


def test_a_keyless_retry_returns_the_batch_of_the_first_try(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file()
    first = create(session, tenant, file)
    assert create(session, tenant, file, retry_count=1).id == first.id
    assert create(session, tenant, file, retry_count=1, metadata={"a": "b"}).id != first.id


def test_two_first_tries_are_two_batches(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file()
    assert create(session, tenant, file).id != create(session, tenant, file).id


def test_a_retry_after_ten_minutes_is_a_new_batch(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file()
    first = create(session, tenant, file)
    age(session, first, minutes=9)
    assert create(session, tenant, file, retry_count=1).id == first.id
    age(session, first, minutes=2)
    assert create(session, tenant, file, retry_count=1).id != first.id


def age(session: Session, batch: Batch, *, minutes: int) -> None:
    session.execute(
        update(Batch)
        .where(Batch.id == batch.id)
        .values(created_at=Batch.created_at - timedelta(minutes=minutes), hinted_at=None)
    )
    session.commit()


def test_a_retry_whose_first_try_was_refused_is_judged_anew(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file(num_requests=1001)
    for retry_count in (0, 1):
        with pytest.raises(TooLargeError):
            create(session, tenant, file, retry_count=retry_count)


@pytest.mark.parametrize("key", [None, "k"])
def test_retries_that_overlap_make_one_batch(
    maker: sessionmaker[Session], session: Session, tenant: Tenant, make_file: Make, key: str | None
) -> None:
    """The first try is still running when its retries arrive: they wait for it instead of creating their own."""
    file = make_file()
    made: list[str] = []

    def attempt(retry_count: int) -> None:
        with maker.begin() as own:
            made.append(create(own, tenant, file, retry_count=retry_count, idempotency_key=key).id)

    retries = [threading.Thread(target=attempt, args=(count,)) for count in (1, 2, 3)]
    with maker.begin() as first:
        made.append(create(first, tenant, file, idempotency_key=key).id)
        for thread in retries:
            thread.start()
        await_waiters(session, 3)
    for thread in retries:
        thread.join()
    assert len(made) == 4
    assert len(set(made)) == 1
    assert budgets.quota(session, tenant.id).reserved == 300


def await_waiters(session: Session, count: int) -> None:
    """Return once `count` transactions wait for an advisory lock: then the race is certain."""
    waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    while session.scalar(waiting) != count:
        session.rollback()


# Reading


def test_another_tenants_batch_is_not_found(session: Session, make_batch: Make) -> None:
    batch = make_batch()
    other = tenants.create_tenant(session, "other")
    for call in (lifecycle.get_batch, lifecycle.cancel_batch):
        with pytest.raises(NotFoundError, match=batch.id):
            call(session, other.id, batch.id)
    assert lifecycle.list_batches(session, other.id).data == []


def test_pages_are_newest_first_complete_and_know_their_end(session: Session, tenant: Tenant, make_batch: Make) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    # Two of them at the same moment: the id decides.
    made = [make_batch(created_at=start + timedelta(seconds=second)).id for second in (0, 1, 1, 2)]
    expected = [made[3], *sorted(made[1:3], reverse=True), made[0]]
    for limit in (1, 2, 3, 4, 5):
        seen: list[str] = []
        after = None
        while True:
            page = lifecycle.list_batches(session, tenant.id, after=after, limit=limit)
            seen += [batch.id for batch in page.data]
            if not page.has_more:
                break
            assert len(page.data) == limit
            after = seen[-1]
        assert seen == expected


def test_an_unknown_cursor_is_refused(session: Session, tenant: Tenant, make_batch: Make) -> None:
    other = tenants.create_tenant(session, "other")
    make_batch()
    foreign = make_batch(tenant_id=other.id)
    for after in ("batch_nowhere", foreign.id):
        with pytest.raises(InputError, match=f"after is '{after}'") as caught:
            lifecycle.list_batches(session, tenant.id, after=after)
        assert (caught.value.status, caught.value.param) == (400, "after")


# Cancelling


@pytest.mark.parametrize("state", [BatchState.VALIDATING, BatchState.IN_PROGRESS])
def test_a_batch_that_waits_or_runs_can_be_cancelled(
    session: Session, tenant: Tenant, make_batch: Make, state: BatchState
) -> None:
    batch = make_batch(state=state)
    cancelled = lifecycle.cancel_batch(session, tenant.id, batch.id)
    assert cancelled.state == BatchState.CANCELLING
    assert cancelled.cancelling_at is not None
    assert lifecycle.cancel_batch(session, tenant.id, batch.id).state == BatchState.CANCELLING


def test_cancelling_withdraws_waiting_chunks_and_leaves_leased_ones_to_their_workers(
    session: Session, tenant: Tenant, make_batch: Make, make_chunk: Make
) -> None:
    batch = make_batch(state=BatchState.IN_PROGRESS, num_requests=2)
    ready, leased = make_chunk(batch), make_chunk(batch, state=ChunkState.LEASED)
    lifecycle.cancel_batch(session, tenant.id, batch.id)
    session.refresh(ready)
    session.refresh(leased)
    assert (ready.state, leased.state) == (ChunkState.WITHDRAWN, ChunkState.LEASED)


@pytest.mark.parametrize("state", ["finalizing", "completed", "failed", "expired", "cancelled"])
def test_a_batch_that_has_ended_cannot_be_cancelled(
    session: Session, tenant: Tenant, make_batch: Make, state: str
) -> None:
    batch = make_batch(state=state)
    with pytest.raises(ConflictError, match=f"Cannot cancel a batch with status '{state}'"):
        lifecycle.cancel_batch(session, tenant.id, batch.id)
    assert batch.state == state


# Moving


def test_a_move_notes_its_moment_and_clears_the_hint(session: Session, make_batch: Make) -> None:
    batch = make_batch(hinted_at=datetime.now(UTC))
    lifecycle.move_batch(session, batch, BatchState.IN_PROGRESS)
    assert batch.state == BatchState.IN_PROGRESS
    assert batch.in_progress_at == session.scalar(text("SELECT now()"))
    assert batch.hinted_at is None
    lifecycle.move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.COMPLETED)
    assert (batch.outcome, batch.completed_at) == (BatchState.COMPLETED, None)
    lifecycle.move_batch(session, batch, BatchState.COMPLETED)
    assert batch.completed_at is not None


def test_a_move_keeps_what_was_changed_beside_it(session: Session, make_batch: Make) -> None:
    batch = make_batch()
    batch.num_requests = 7
    lifecycle.move_batch(session, batch, BatchState.IN_PROGRESS)
    assert batch.num_requests == 7


def test_a_move_that_the_table_forbids_is_refused(session: Session, make_batch: Make) -> None:
    with pytest.raises(IllegalMoveError, match="completed → in_progress"):
        lifecycle.move_batch(session, make_batch(state=BatchState.COMPLETED), BatchState.IN_PROGRESS)


def test_a_move_from_a_state_that_is_no_longer_true_is_refused(
    session: Session, maker: sessionmaker[Session], make_batch: Make
) -> None:
    batch = make_batch()
    with maker.begin() as other:
        twin = lifecycle.lock_batch(other, batch.id)
        assert twin is not None
        lifecycle.move_batch(other, twin, BatchState.CANCELLING)
    with pytest.raises(IllegalMoveError, match="left validating"):
        lifecycle.move_batch(session, batch, BatchState.IN_PROGRESS)


# The input file


def test_the_input_of_a_live_batch_cannot_be_deleted(session: Session, tenant: Tenant, make_file: Make) -> None:
    file = make_file()
    batch = create(session, tenant, file)
    with pytest.raises(ConflictError, match=batch.id):
        files.delete_file(session, tenant.id, file.id, by="key_1")
    lifecycle.move_batch(session, batch, BatchState.FAILED)
    files.delete_file(session, tenant.id, file.id, by="key_1")
    with pytest.raises(NotFoundError):
        files.get_file(session, tenant.id, file.id)


def test_a_file_is_not_deleted_while_a_batch_is_being_made_of_it(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, make_file: Make
) -> None:
    file = make_file()
    refused: list[ConflictError] = []

    def delete() -> None:
        with maker.begin() as own:
            try:
                files.delete_file(own, tenant.id, file.id, by="key_1")
            except ConflictError as error:
                refused.append(error)

    thread = threading.Thread(target=delete)
    with maker.begin() as creating:
        create(creating, tenant, file)
        thread.start()
        while not session.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")):
            session.rollback()
    thread.join()
    assert len(refused) == 1


def test_a_create_that_is_taken_for_a_repeated_one_is_logged(
    session: Session, tenant: Tenant, make_file: Make, caplog: pytest.LogCaptureFixture
) -> None:
    file = make_file()
    with caplog.at_level("INFO", logger="jobs.batches.lifecycle"):
        first = create(session, tenant, file)
        assert caplog.messages == []
        assert create(session, tenant, file, retry_count=1) is first
    assert caplog.messages == [f"create repeated batch_id={first.id} retry_count=1"]
