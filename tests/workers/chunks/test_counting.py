"""Tests of counting inputs token by token: exactly, in turns, by any remaining worker, and below real work."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import files
from jobs.accounts import tenants
from jobs.batches import exact_counts
from jobs.batches.exact_counts import NewCount
from jobs.errors import FencedOutError, LimitError
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.settings import Settings
from jobs.states import AskedPriority, CountState
from jobs.storage import Storage
from jobs.tables import InputCount, Tenant
from jobs.telemetry.declared import WORKER
from jobs.telemetry.meters import Meters
from tests.workers.chunks.builders import DEMO_MODEL
from workers.answers import AnswerMaker
from workers.chunks import counting
from workers.chunks.adapter_folders import AdapterFolders
from workers.chunks.counting import InputCounter
from workers.chunks.engine_parts import EngineParts
from workers.chunks.services import Services
from workers.prompts import PromptMaker

CONTEXT, VOCAB = 64, 1024
NOTHING = "SELECT (SELECT count(*) FROM ledger), (SELECT sum(spent_tokens + reserved_tokens) FROM budget)"


@pytest.fixture
def parts(maker: sessionmaker[Session], storage: Storage, settings: Settings, tokenizer: Any) -> EngineParts:
    no_host: Any = None
    services = Services(
        sessions=maker,
        hold_sessions=maker,
        storage=storage,
        settings=settings,
        meters=Meters(WORKER),
        monotonic=itertools.count(step=10).__next__,  # each line takes the whole turn
    )
    return EngineParts(
        services=services,
        host=no_host,
        prompts=PromptMaker(tokenizer, max_model_len=CONTEXT, vocab_size=VOCAB),
        answers=AnswerMaker(tokenizer, model="demo"),
        tokenizer=tokenizer,
        model_fingerprint="demo",
        adapters=AdapterFolders(maker, model="demo", folder=DEMO_MODEL),
    )


@pytest.fixture
def counter(parts: EngineParts) -> InputCounter:
    return InputCounter(parts, model="demo", is_busy=lambda: False)


Ask = Callable[..., str]


@pytest.fixture
def ask(maker: sessionmaker[Session], storage: Storage, tenant: Tenant) -> Ask:
    """Store an input and request its count; return the count's id."""
    default = tenant

    def ask(content: bytes, *, tenant: Tenant = default) -> str:
        key = files.new_object_key(tenant.id)
        new = files.NewFile(
            object_key=key, filename="a", purpose=files.Purpose.USER_DATA, size_bytes=storage.put(key, content)
        )
        with maker.begin() as session:
            file = files.create_file(session, tenant.id, new)
            wanted = NewCount(
                file_id=file.id,
                endpoint=CHAT_ENDPOINT,
                model="demo",
                priority=AskedPriority.NORMAL,
                completion_window="24h",
            )
            return exact_counts.ask(session, tenant.id, wanted).id

    return ask


@pytest.fixture
def read(maker: sessionmaker[Session]) -> Callable[[str], InputCount]:
    def read(count_id: str) -> InputCount:
        with maker() as session:
            return session.get_one(InputCount, count_id)

    return read


def joined(lines: list[dict[str, Any]]) -> bytes:
    return b"\n".join(json.dumps(line).encode() for line in lines)


def finish(counter: InputCounter) -> int:
    """Take turns until there are none; return their number."""
    return sum(1 for _ in iter(counter.count_once, False))


def test_every_prompt_is_counted_as_it_runs_and_nothing_is_billed(
    counter: InputCounter, ask: Ask, read: Callable[[str], InputCount], line: Callable[..., dict[str, Any]],
    parts: EngineParts, maker: sessionmaker[Session],
) -> None:  # fmt: skip
    lines = [line(number, n=2 if number else 1) for number in range(4)]
    lines += [line(4, max_tokens=None), line(5, messages=[{"role": "user", "content": "ä ö ü €" * 3}])]
    count_id = ask(b"\xef\xbb\xbf" + joined(lines[:3]) + b"\r\n\n \n" + joined(lines[3:]))
    finish(counter)
    found = read(count_id)
    prompts = [
        parts.prompts._template.prompt(one["body"]["messages"], None, check=lambda _: None).token_ids for one in lines
    ]  # fmt: skip
    assert found.state == CountState.COUNTED
    assert found.input_tokens == sum(map(len, prompts))
    assert found.output_tokens == 4 + 3 * 8 + (CONTEXT - len(prompts[4])) + 4
    assert (found.num_requests, found.num_invalid, found.listed) == (6, 0, [])
    with maker() as session:
        assert tuple(session.execute(text(NOTHING)).one()) == (0, 0)


def test_bad_lines_are_those_that_the_worker_would_refuse(
    counter: InputCounter, ask: Ask, read: Callable[[str], InputCount], line: Callable[..., dict[str, Any]]
) -> None:
    long = line(1, messages=[{"role": "user", "content": "x y " * CONTEXT}])
    other = line(2) | {"body": line(2)["body"] | {"model": "other"}}
    content = joined([line(0), long, other, line(3, temperature=7), line(4, max_tokens=CONTEXT - 1)]) + b"\nno json"
    found = read(ask(content))
    finish(counter)
    found = read(found.id)
    assert [(one["line"], one["code"]) for one in found.listed] == [
        (2, "context_length_exceeded"),
        (3, "model_mismatch"),
        (4, "invalid_value"),
        (5, "context_length_exceeded"),
        (6, "invalid_json_line"),
    ]
    assert (found.num_requests, found.num_invalid) == (6, 5)


def test_a_turn_is_its_owners_only_whatever_the_fence(
    counter: InputCounter, ask: Ask, read: Callable[[str], InputCount], line: Callable[..., dict[str, Any]],
    maker: sessionmaker[Session],
) -> None:  # fmt: skip
    """A restored database issues the same fence again."""
    count_id = ask(joined([line(0)]))
    with maker.begin() as session:
        lost = exact_counts.claim(session, model="demo", lease=timedelta(hours=1))
        assert lost is not None
    with maker.begin() as session:
        session.execute(text("UPDATE input_count SET claim_fence = 0, claimed_until = NULL, claimed_by = NULL"))
    with maker.begin() as session:
        claimed = exact_counts.claim(session, model="demo", lease=timedelta(hours=1))
        assert claimed is not None
    assert claimed.fence == lost.fence
    turn = counter._count(lost)
    with pytest.raises(FencedOutError), maker.begin() as session:
        exact_counts.note_turn(session, lost, turn, max_listed=5)
    with pytest.raises(FencedOutError), maker.begin() as session:
        exact_counts.fail(session, lost, "no")
    with maker.begin() as session:
        exact_counts.note_turn(session, claimed, turn, max_listed=5)
    assert (read(count_id).state, read(count_id).num_requests) == (CountState.COUNTED, 1)


def test_a_turn_that_is_lost_is_taken_again_behind_the_last_line_that_was_written(
    counter: InputCounter, ask: Ask, read: Callable[[str], InputCount], line: Callable[..., dict[str, Any]],
    maker: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    count_id = ask(joined([line(number) for number in range(3)]))
    assert counter.count_once()
    assert (read(count_id).next_line, read(count_id).num_requests) == (1, 1)
    with maker.begin() as session:
        lost = exact_counts.claim(session, model="demo", lease=timedelta(hours=1))
        assert lost is not None
    assert not counter.count_once(), "its worker may still count"
    with maker.begin() as session:
        session.execute(text("UPDATE input_count SET claimed_until = now()"))
    late = counter._count(lost)
    finish(counter)
    with pytest.raises(FencedOutError), maker.begin() as session:
        exact_counts.note_turn(session, lost, late, max_listed=5)
    found = read(count_id)
    assert (found.state, found.num_requests) == (CountState.COUNTED, 3)
    whole = ask(joined([line(number) for number in range(3)]))
    monkeypatch.setattr(counting, "TURN_SECONDS", 1e9)
    assert finish(counter) == 1
    assert read(whole).input_tokens == found.input_tokens


def test_tenants_take_turns_however_many_inputs_they_have(
    counter: InputCounter, ask: Ask, read: Callable[[str], InputCount], line: Callable[..., dict[str, Any]],
    maker: sessionmaker[Session],
) -> None:  # fmt: skip
    with maker.begin() as session:
        other = tenants.create_tenant(session, "other")
    content = joined([line(number) for number in range(20)])
    many = [ask(content) for _ in range(exact_counts.MAX_COUNTING)]
    with pytest.raises(LimitError, match="being counted"):
        ask(content)
    one = ask(content, tenant=other)
    for _ in range(12):
        counter.count_once()
    assert sum(read(count_id).num_requests for count_id in many) == read(one).num_requests == 6


def test_an_input_that_is_deleted_or_lost_meanwhile_has_failed(
    counter: InputCounter, ask: Ask, read: Callable[[str], InputCount], line: Callable[..., dict[str, Any]],
    maker: sessionmaker[Session], storage: Storage, tenant: Tenant,
) -> None:  # fmt: skip
    deleted, lost = (ask(joined([line(0)])) for _ in range(2))
    with maker.begin() as session:
        files.delete_file(session, tenant.id, session.get_one(InputCount, deleted).input_file_id, by="key")
        file = files.get_file(session, tenant.id, session.get_one(InputCount, lost).input_file_id)
        storage.delete(file.object_key)
    for _ in range(4):
        counter.count_once()
    assert {read(count_id).state for count_id in (deleted, lost)} == {CountState.FAILED}
    assert "deleted" in str(read(deleted).failure)


def test_counts_are_forgotten_after_a_day(
    ask: Ask, line: Callable[..., dict[str, Any]], maker: sessionmaker[Session]
) -> None:
    old, young = (ask(joined([line(0)])) for _ in range(2))
    with maker.begin() as session:
        day_ago = "UPDATE input_count SET created_at = now() - interval '25 hours' WHERE id = :id"
        session.execute(text(day_ago), {"id": old})
    with maker.begin() as session:
        assert exact_counts.forget(session) == 1
        assert session.scalars(select(InputCount.id)).all() == [young]


def test_a_counter_pauses_between_its_turns_while_chunks_are_open(
    parts: EngineParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_busy, turns, waits = True, iter([True, True, False]), []
    counter = InputCounter(parts, model="demo", is_busy=lambda: is_busy)

    def wait(seconds: float) -> None:
        nonlocal is_busy
        waits.append(seconds)
        is_busy = False
        if len(waits) == 3:
            counter.stop()

    monkeypatch.setattr(counter, "count_once", lambda: next(turns))
    monkeypatch.setattr(counter._stop, "wait", wait)
    counter._count_until_stopped()
    assert waits[:2] == [counting.PAUSE_TURNS * 10, 0]
    assert 0 < waits[2] <= parts.services.settings.claim_alone_seconds


def test_a_worker_that_drains_ends_its_turn_behind_a_line(
    parts: EngineParts, ask: Ask, read: Callable[[str], InputCount], line: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    count_id = ask(joined([line(number) for number in range(5)]))
    counter = InputCounter(parts, model="demo", is_busy=lambda: False)
    monkeypatch.setattr(counting, "TURN_SECONDS", 1e9)
    measured: Iterator[int] = itertools.count(1)
    original = parts.prompts.measure

    def measure(*arguments: Any, **options: Any) -> tuple[int, int]:
        if next(measured) == 2:
            counter.stop()
        return original(*arguments, **options)

    monkeypatch.setattr(parts.prompts, "measure", measure)
    counter.count_once()
    assert read(count_id).num_requests == 1
    assert read(count_id).state == CountState.COUNTING
