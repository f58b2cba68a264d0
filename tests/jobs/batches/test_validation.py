"""Tests of validation: every invalid line is listed, valid files become chunks, and failed attempts leave nothing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.accounts.refused_input import RefusedInput, refused_input
from jobs.batches import lifecycle, sweeps
from jobs.chunks import fairshare, fleet
from jobs.errors import ServiceError
from jobs.lines.reading import BOM
from jobs.settings import Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, Result, Tenant
from tests.jobs.batches import control

Line = Callable[..., str]
Submit = Callable[..., Batch]


def codes(batch: Batch) -> list[tuple[str, str | None, int | None]]:
    return [(error["code"], error["param"], error["line"]) for error in batch.errors or []]


def chunks_of(session: Session, batch: Batch) -> list[Chunk]:
    return list(session.scalars(select(Chunk).where(Chunk.batch_id == batch.id).order_by(Chunk.first_line)))


class InterruptedStorage(Storage):
    """Runs `between` in the middle of the file."""

    def __init__(self, storage: Storage, between: Callable[[], None]) -> None:
        self._inner = storage
        self._between = between

    def iter_range(self, key: str, start: int, end: int, **options: Any) -> Iterator[bytes]:
        content = b"".join(self._inner.iter_chunks(key))
        yield content[: len(content) // 2]
        self._between()
        yield content[len(content) // 2 :]


@pytest.fixture
def validate(session: Session, storage: Storage, settings: Settings) -> Validate:
    """Validate in a transaction of its own; `between` runs in the middle of the file."""

    def validate(
        batch: Batch, *, between: Callable[[], None] | None = None, settings: Settings = settings
    ) -> BatchState | None:
        store = storage if between is None else InterruptedStorage(storage, between)
        moved = control.validate(session, store, batch.id, settings=settings)
        session.commit()
        session.refresh(batch)
        return moved

    return validate


Validate = Callable[..., BatchState | None]


def test_a_good_file_becomes_chunks_that_cover_it(
    session: Session, storage: Storage, submit: Submit, validate: Validate, request_line: Line
) -> None:
    lines = [request_line(f"a{index}") for index in range(6)]
    content = BOM + "\r\n".join([*lines[:3], "", *lines[3:], "", ""]).encode()
    batch = submit(content)
    assert validate(batch) is BatchState.IN_PROGRESS
    assert (batch.num_requests, batch.num_failed, batch.model, batch.errors) == (6, 0, "m", None)
    chunks = chunks_of(session, batch)
    assert [(chunk.first_line, chunk.num_lines, chunk.num_requests) for chunk in chunks] == [(0, 3, 3), (4, 3, 3)]
    assert b"".join(content[chunk.byte_start : chunk.byte_end] for chunk in chunks).count(b"custom_id") == 6
    assert all(chunk.estimated_tokens >= 3 * 10 for chunk in chunks)
    assert all(chunk.expires_at == batch.expires_at for chunk in chunks)


def test_every_bad_line_is_listed_with_its_code_and_line(
    submit: Submit, validate: Validate, request_line: Line
) -> None:
    batch = submit(
        [
            request_line("a"),
            "",
            "{broken",
            request_line("a"),
            request_line("b", url="/v1/completions"),
            request_line("c", model="nobody"),
            request_line("d", model="other"),
        ]
    )
    assert validate(batch) is BatchState.FAILED
    assert codes(batch) == [
        ("invalid_json_line", None, 3),
        ("duplicate_custom_id", "custom_id", 4),
        ("url_mismatch", "url", 5),
        ("model_not_found", "body.model", 6),
        ("model_mismatch", "body.model", 7),
    ]
    messages = [error["message"] for error in batch.errors or []]
    assert "line 1" in messages[1]
    assert "known are: m, other" in messages[3]
    assert (batch.num_unlisted_errors, batch.num_completed, batch.num_failed) == (0, 0, 0)


def with_body(line: str, **parameters: object) -> str:
    parsed = json.loads(line)
    parsed["body"] |= parameters
    return json.dumps(parsed)


def test_wrong_parameters_are_found_before_anything_runs(
    submit: Submit, validate: Validate, request_line: Line
) -> None:
    batch = submit([
        with_body(request_line("a"), temperature=7),
        with_body(request_line("b"), foo=1),
        with_body(request_line("c"), messages=[]),
        with_body(request_line("d"), temperature=0.5),
    ])  # fmt: skip
    assert validate(batch) is BatchState.FAILED
    assert codes(batch) == [
        ("invalid_value", "body.temperature", 1),
        ("unknown_parameter", "body.foo", 2),
        ("invalid_value", "body.messages", 3),
    ]
    assert (batch.errors or [])[0]["message"] == "temperature is 7; it must be a number from 0 to 2"


@pytest.mark.parametrize("key", ["a\0b", "k" * 700])
def test_a_key_that_no_message_can_hold_is_told_shortened(submit: Submit, validate: Validate, key: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], key: 1}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    batch = submit([json.dumps(line)])
    assert validate(batch) is BatchState.FAILED
    (error,) = batch.errors or []
    assert "\0" not in error["message"] + error["param"]
    assert len(error["message"]) < 600
    assert len(error["param"]) < 300


@pytest.mark.parametrize(("max_tokens", "content", "param"), [(64, "x", "max_tokens"), (4, "x" * 9000, "messages")])
def test_what_is_surely_too_long_for_every_worker_is_found_before_it_runs(
    session: Session, submit: Submit, validate: Validate, request_line: Line, max_tokens: int, content: str, param: str
) -> None:
    fleet.register(session, worker_id="w", model="m", max_chunks=1, max_model_len=64)
    session.commit()
    long = {"max_tokens": max_tokens, "messages": [{"role": "user", "content": content}]}
    batch = submit([with_body(request_line("a"), **long), request_line("b")], invalid_lines=InvalidLines.SKIP)
    strict = Settings()
    validate(batch, settings=strict)
    assert (batch.num_requests, batch.num_failed) == (2, 1)
    other = submit([with_body(request_line("a", model="other"), **long)])
    assert validate(other, settings=strict) is BatchState.IN_PROGRESS, "nobody knows that model's context"
    fits = {"max_tokens": 63, "messages": [{"role": "user", "content": "x" * 900}]}
    assert validate(submit([with_body(request_line("a"), **fits)]), settings=strict) is BatchState.IN_PROGRESS, param


def test_a_file_that_is_still_packed_is_named(submit: Submit, validate: Validate, request_line: Line) -> None:
    batch = submit(gzip.compress(request_line("a").encode()))
    assert validate(batch) is BatchState.FAILED
    assert "compressed with gzip; unpack it" in (batch.errors or [])[0]["message"]


def test_bad_lines_beyond_the_cap_are_counted(submit: Submit, validate: Validate) -> None:
    batch = submit(["nonsense"] * 12)
    validate(batch)
    assert [line for _, _, line in codes(batch)] == [1, 2, 3, 4, 5]
    assert batch.num_unlisted_errors == 7


def test_a_line_longer_than_allowed_is_a_bad_line(submit: Submit, validate: Validate, request_line: Line) -> None:
    batch = submit([request_line("a"), request_line("b" * 3000)])
    validate(batch)
    assert codes(batch) == [("invalid_request", None, 2)]


@pytest.mark.parametrize("content", [b"", b"\n\n", BOM + b"\r\n"])
@pytest.mark.parametrize("invalid_lines", list(InvalidLines))
def test_an_empty_file_fails_in_either_mode(
    submit: Submit, validate: Validate, content: bytes, invalid_lines: InvalidLines
) -> None:
    batch = submit(content, invalid_lines=invalid_lines)
    assert validate(batch) is BatchState.FAILED
    assert codes(batch) == [("empty_file", None, None)]


@pytest.mark.parametrize("invalid_lines", list(InvalidLines))
def test_a_file_with_too_many_requests_fails_with_the_numbers(
    session: Session, submit: Submit, validate: Validate, invalid_lines: InvalidLines
) -> None:
    batch = submit(["bad"] * 101, invalid_lines=invalid_lines)
    assert validate(batch) is BatchState.FAILED
    assert codes(batch)[0] == ("too_many_tasks", None, None)
    assert "101" in (batch.errors or [])[0]["message"]
    assert "100" in (batch.errors or [])[0]["message"]
    assert batch.num_unlisted_errors == 95
    assert session.scalar(select(func.count()).select_from(Result)) == 0


def test_a_failed_batch_gives_its_reservation_back(
    session: Session, tenant: Tenant, submit: Submit, validate: Validate
) -> None:
    budgets.set_limit(session, tenant.id, 1000)
    batch = submit(["bad"], reserved_tokens=600)
    assert budgets.quota(session, tenant.id).available == 400
    validate(batch)
    assert budgets.quota(session, tenant.id).available == 1000
    assert chunks_of(session, batch) == []


def test_skipped_lines_become_error_results_and_the_rest_runs(
    session: Session, submit: Submit, validate: Validate, request_line: Line
) -> None:
    lines = [
        request_line("a"),
        "{",
        request_line("a"),
        request_line("b"),
        request_line("c", url="/x"),
        request_line("d"),
    ]
    batch = submit(lines, invalid_lines=InvalidLines.SKIP)
    assert validate(batch) is BatchState.IN_PROGRESS
    assert (batch.num_requests, batch.num_completed, batch.num_failed) == (6, 0, 3)
    assert batch.errors is None
    results = list(session.scalars(select(Result).order_by(Result.result_no)))
    assert [(result.result_no, result.line_no, result.is_error) for result in results] == [
        (1, 1, True),
        (2, 2, True),
        (3, 4, True),
    ]
    written = [json.loads(result.line) for result in results]
    assert [line["error"]["code"] for line in written] == ["invalid_json_line", "duplicate_custom_id", "url_mismatch"]
    assert [line["custom_id"] for line in written] == [None, "a", "c"]
    assert written[0]["error"]["message"].startswith("line 2: ")
    assert [(chunk.first_line, chunk.num_lines, chunk.num_requests) for chunk in chunks_of(session, batch)] == [
        (0, 4, 4),
        (5, 1, 1),
    ]
    assert session.scalar(text("SELECT count(*) FROM ledger")) == 0


def test_with_nothing_but_skipped_lines_the_batch_goes_on_to_its_files(submit: Submit, validate: Validate) -> None:
    batch = submit(["bad", "worse"], invalid_lines=InvalidLines.SKIP)
    assert validate(batch) is BatchState.FINALIZING
    assert (batch.outcome, batch.num_requests, batch.num_failed) == ("completed", 2, 2)


def test_a_repeated_hint_does_nothing(session: Session, submit: Submit, validate: Validate, request_line: Line) -> None:
    batch = submit([request_line("a")])
    assert validate(batch) is BatchState.IN_PROGRESS
    assert validate(batch) is None
    assert len(chunks_of(session, batch)) == 1


def test_a_crash_in_the_middle_leaves_nothing(
    session: Session, submit: Submit, validate: Validate, request_line: Line
) -> None:
    def break_off() -> None:
        raise ServiceError("the store is away")

    batch = submit(["bad"] * 10 + [request_line("a")], invalid_lines=InvalidLines.SKIP)
    with pytest.raises(ServiceError):
        validate(batch, between=break_off)
    session.rollback()
    assert session.scalar(select(func.count()).select_from(Result)) == 0
    assert validate(batch) is BatchState.IN_PROGRESS
    assert batch.num_failed == 10


def test_a_batch_cancelled_meanwhile_is_left_alone(
    session: Session, maker: sessionmaker[Session], submit: Submit, validate: Validate, request_line: Line
) -> None:
    batch = submit(["bad", request_line("a")], invalid_lines=InvalidLines.SKIP)

    def cancel() -> None:
        with maker.begin() as other:
            lifecycle.cancel_batch(other, batch.tenant_id, batch.id)

    assert validate(batch, between=cancel) is None
    assert (batch.state, batch.num_requests) == (BatchState.CANCELLING, 0)
    assert chunks_of(session, batch) == []
    assert session.scalar(select(func.count()).select_from(Result)) == 0


def _look_again(session: Session) -> None:
    session.execute(text("UPDATE batch SET input_missed_at = input_missed_at - interval '2 minutes'"))
    session.commit()


@pytest.mark.parametrize("is_truncated", [False, True])
def test_an_input_that_is_missed_twice_fails_the_batch(
    storage: Storage, session: Session, submit: Submit, validate: Validate, request_line: Line, *, is_truncated: bool
) -> None:
    batch = submit([request_line("a"), request_line("b")])
    key = str(session.scalar(text("SELECT object_key FROM file WHERE id = :id"), {"id": batch.input_file_id}))
    content = b"".join(storage.iter_chunks(key))
    storage.put(key, content[:-10]) if is_truncated else storage.delete(key)
    assert validate(batch) is None
    assert (batch.state, batch.deferred_until is None) == (BatchState.VALIDATING, False)
    assert sweeps.due_batches(session) == []
    _look_again(session)
    assert validate(batch) is BatchState.FAILED
    assert codes(batch) == [("file_not_found", None, None)]


def test_an_input_that_is_back_at_the_second_look_is_validated(
    storage: Storage, session: Session, submit: Submit, validate: Validate, request_line: Line
) -> None:
    batch = submit([request_line("a")])
    key = str(session.scalar(text("SELECT object_key FROM file WHERE id = :id"), {"id": batch.input_file_id}))
    content = b"".join(storage.iter_chunks(key))
    storage.delete(key)
    assert validate(batch) is None
    storage.put(key, content)
    _look_again(session)
    assert validate(batch) is BatchState.IN_PROGRESS
    assert batch.input_missed_at is None


def test_a_tenant_that_returns_starts_where_the_others_are(
    session: Session, submit: Submit, validate: Validate, request_line: Line, tenant: Tenant
) -> None:
    fairshare.activate(session, model="m", priority="normal", tenant_id=tenant.id)
    fairshare.charge(session, model="m", priority="normal", tenant_id=tenant.id, tokens=500)
    validate(submit([request_line("a")]))
    session.execute(text("INSERT INTO tenant (id, name) VALUES ('t2', 'two')"))
    session.execute(text("INSERT INTO budget (tenant_id) VALUES ('t2')"))
    session.commit()
    validate(submit([request_line("a")], tenant_id="t2"))
    assert session.scalar(text("SELECT virtual_time FROM fair_share WHERE tenant_id = 't2'")) == 500


@pytest.mark.parametrize(("num_bad", "num_good", "allowed"), [(4, 0, 3), (4, 20, 3), (7, 60, 6)])
def test_too_many_bad_lines_fail_a_batch_that_skips_them_and_leave_no_result(
    session: Session, storage: Storage, settings: Settings, submit: Submit, request_line: Line, *,
    num_bad: int, num_good: int, allowed: int,
) -> None:  # fmt: skip
    """Three are allowed here, or a tenth of the lines if that is more."""
    lines = ["1"] * num_bad + [request_line(f"a{number}") for number in range(num_good)]
    batch = submit(lines, invalid_lines=InvalidLines.SKIP)
    strict = settings.model_copy(update={"max_invalid_lines": 3, "max_listed_errors": 2})
    assert control.validate(session, storage, batch.id, settings=strict) is BatchState.FAILED
    assert batch.errors is not None
    assert [code for code, _, _ in codes(batch)] == ["too_many_invalid_lines", *["invalid_json_line"] * 2]
    said = f"{num_bad} of {num_bad + num_good} lines are invalid and {allowed} are allowed"
    assert batch.errors[0]["message"].startswith(said)
    assert batch.num_unlisted_errors == num_bad - 2
    assert session.scalar(select(func.count()).select_from(Result)) == 0


@pytest.mark.parametrize(("num_bad", "num_good"), [(3, 1), (6, 54)])
def test_as_many_bad_lines_as_are_allowed_are_skipped(
    session: Session, storage: Storage, settings: Settings, submit: Submit, request_line: Line, *,
    num_bad: int, num_good: int,
) -> None:  # fmt: skip
    lines = ["1"] * num_bad + [request_line(f"a{number}") for number in range(num_good)]
    batch = submit(lines, invalid_lines=InvalidLines.SKIP)
    strict = settings.model_copy(update={"max_invalid_lines": 3})
    assert control.validate(session, storage, batch.id, settings=strict) is BatchState.IN_PROGRESS
    assert batch.num_failed == num_bad


@pytest.mark.parametrize("invalid_lines", list(InvalidLines))
def test_refused_input_is_counted_for_its_tenant(
    session: Session, tenant: Tenant, submit: Submit, validate: Validate, request_line: Line,
    invalid_lines: InvalidLines,
) -> None:  # fmt: skip
    assert refused_input(session, tenant.id) == RefusedInput(lines=0, size_bytes=0)
    for _ in range(2):
        validate(submit(["1", "no JSON", request_line("a")], invalid_lines=invalid_lines))
    assert refused_input(session, tenant.id) == RefusedInput(lines=4, size_bytes=2 * len("1\nno JSON\n"))
