"""Tests of tenants' limits: the settings' unless the operator set others, and refusals with their numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs import file_room, files
from jobs.accounts import tenants
from jobs.accounts.limits import NAMES, Limits, limits_of, set_limits
from jobs.batches import lifecycle, queue_limits
from jobs.batches.submission import CreateBatch
from jobs.errors import InputError, LimitError, RateLimitError, TooLargeError
from jobs.files import NewFile
from jobs.lines.document_bodies import READ_ENDPOINT
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.tables import Batch, File, Tenant

MakeFile = Callable[..., File]

UNLIMITED = Limits(**dict.fromkeys(NAMES, 10**12))


def wanted(file: File, number: int = 0) -> CreateBatch:
    return CreateBatch(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"number": str(number)}
    )


def test_the_operators_number_wins_over_the_setting_until_it_is_taken_back(session: Session, tenant: Tenant) -> None:
    settings = Settings(tenant_files=7, tenant_open_batches=3)
    assert (limits_of(tenant, settings).files, limits_of(tenant, settings).open_batches) == (7, 3)
    set_limits(session, tenant.id, {"files": 0})
    session.refresh(tenant)
    assert (limits_of(tenant, settings).files, limits_of(tenant, settings).open_batches) == (0, 3)
    set_limits(session, tenant.id, {"files": None})
    session.refresh(tenant)
    assert limits_of(tenant, settings).files == 7


@pytest.mark.parametrize("value", [-1, 10**15 + 1, 2**63])
def test_a_limit_out_of_range_is_refused(session: Session, tenant: Tenant, value: int) -> None:
    with pytest.raises(InputError, match=f"files is {value}; give 0 to 1000000000000000"):
        set_limits(session, tenant.id, {"files": value})


def test_open_batches_are_counted_until_they_end(
    session: Session, tenant: Tenant, make_file: MakeFile, settings: Settings
) -> None:
    file = make_file()
    set_limits(session, tenant.id, {"open_batches": 2})
    session.refresh(tenant)
    for number in range(2):
        lifecycle.create_batch(session, tenant, wanted(file, number), settings)
    with pytest.raises(LimitError, match="You have 2 open batches and 2 are allowed") as caught:
        lifecycle.create_batch(session, tenant, wanted(file, 2), settings)
    assert (caught.value.status, caught.value.code) == (429, "open_batches_exceeded")
    session.rollback()


def test_an_ended_batch_makes_room(
    session: Session, tenant: Tenant, make_file: MakeFile, make_batch: Callable[..., Batch], settings: Settings
) -> None:
    strict = settings.model_copy(update={"tenant_open_batches": 1, "max_open_batches": 1})
    file = make_file()
    make_batch(input_file_id=file.id, state=BatchState.COMPLETED.value)
    lifecycle.create_batch(session, tenant, wanted(file), strict)


def test_enqueued_tokens_are_those_of_all_open_batches(
    session: Session, tenant: Tenant, make_file: MakeFile, settings: Settings
) -> None:
    strict = settings.model_copy(update={"tenant_enqueued_tokens": 599})
    file = make_file(estimated_input_tokens=100, estimated_output_tokens=200)
    lifecycle.create_batch(session, tenant, wanted(file, 1), strict)
    with pytest.raises(LimitError, match="about 300 tokens, your open batches have 300, and together 599") as caught:
        lifecycle.create_batch(session, tenant, wanted(file, 2), strict)
    assert caught.value.code == "enqueued_tokens_exceeded"
    session.rollback()
    others = tenants.create_tenant(session, "other")
    theirs = make_file(tenant_id=others.id)
    assert lifecycle.create_batch(session, others, wanted(theirs), strict).tenant_id == others.id


def test_a_batch_of_more_tokens_than_all_may_have_is_too_large_however_few_are_open(
    session: Session, tenant: Tenant, make_file: MakeFile, settings: Settings
) -> None:
    strict = settings.model_copy(update={"tenant_enqueued_tokens": 299, "tenant_open_batches": 0})
    file = make_file(estimated_input_tokens=100, estimated_output_tokens=200)
    with pytest.raises(TooLargeError, match="about 300 tokens, and all your open batches together may have 299") as no:
        lifecycle.create_batch(session, tenant, wanted(file), strict)
    assert (no.value.status, no.value.code) == (413, "enqueued_tokens_exceeded")
    session.rollback()


def test_documents_that_are_read_enqueue_no_tokens(
    session: Session, tenant: Tenant, make_file: MakeFile, make_batch: Callable[..., Batch], settings: Settings
) -> None:
    file = make_file(estimated_input_tokens=100, estimated_output_tokens=200)
    make_batch(input_file_id=file.id, endpoint=READ_ENDPOINT)
    assert queue_limits.open_work(session, tenant.id) == (1, 0)
    strict = settings.model_copy(update={"tenant_enqueued_tokens": 300})
    lifecycle.create_batch(session, tenant, wanted(file), strict)
    assert queue_limits.open_work(session, tenant.id) == (2, 300)


def test_two_creates_at_once_do_not_both_take_the_last_place(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, make_file: MakeFile, settings: Settings
) -> None:
    strict = settings.model_copy(update={"tenant_open_batches": 1})
    file = make_file()
    session.commit()
    refused: list[LimitError] = []

    def create(number: int) -> None:
        try:
            with maker.begin() as own:
                lifecycle.create_batch(own, own.get_one(Tenant, tenant.id), wanted(file, number), strict)
        except LimitError as error:
            refused.append(error)

    threads = [threading.Thread(target=create, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(refused) == 3


def test_the_queue_of_all_tenants_has_a_depth_and_may_be_tried_again(
    session: Session, tenant: Tenant, make_file: MakeFile, settings: Settings
) -> None:
    strict = settings.model_copy(update={"max_open_batches": 1})
    other = tenants.create_tenant(session, "other")
    lifecycle.create_batch(session, other, wanted(make_file(tenant_id=other.id)), strict)
    with pytest.raises(RateLimitError, match="has 1 open batches") as caught:
        lifecycle.create_batch(session, tenant, wanted(make_file()), strict)
    assert (caught.value.status, caught.value.code, caught.value.retry_after_seconds) == (429, "queue_full", 30)


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"files": 2}, "too_many_files", "You keep 2 files and 2 are allowed"),
        ({"stored_bytes": 2049}, "stored_bytes_exceeded", "has 50 bytes, what you keep has 2,000, and together 2,049"),
    ],
)
def test_what_a_tenant_keeps_is_bounded_and_deleting_makes_room(
    session: Session, tenant: Tenant, make_file: MakeFile, *, changes: dict[str, int], code: str, said: str
) -> None:
    first, _ = make_file(), make_file()
    limits = Limits(**{name: getattr(UNLIMITED, name) for name in NAMES} | changes)
    with pytest.raises(TooLargeError, match=said) as caught:
        file_room.check_room(session, tenant.id, limits, size_bytes=50)
    assert (caught.value.status, caught.value.code) == (413, code)
    files.delete_file(session, tenant.id, first.id, by="key_1")
    file_room.check_room(session, tenant.id, limits, size_bytes=50)


def test_outputs_count_and_are_never_refused(session: Session, tenant: Tenant) -> None:
    new: dict[str, Any] = {"object_key": "o", "filename": "out.jsonl", "purpose": "batch_output", "size_bytes": 10**13}
    files.create_file(session, tenant.id, NewFile(**new))
    with pytest.raises(TooLargeError):
        file_room.check_room(session, tenant.id, UNLIMITED, size_bytes=1)
