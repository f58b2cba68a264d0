"""The control tasks: thin, repeatable, and able to work without hints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch
from workers.control import Control


@pytest.fixture
def control(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Control:
    return Control(maker, storage, settings.model_copy(update={"claim_alone_seconds": 0.02}))


MakeLine = Callable[..., dict[str, Any]]


def test_a_repeated_hint_to_validate_changes_nothing(
    control: Control, submit: Callable[..., str], line: MakeLine, maker: sessionmaker[Session]
) -> None:
    batch_id = submit([line(0), line(1)])
    control.validate(batch_id)
    control.validate(batch_id)
    with maker() as session:
        assert session.execute(text("SELECT count(*) FROM chunk")).scalar_one() == 1


def test_without_a_broker_an_overdue_batch_is_validated_and_a_failed_one_finds_its_end(
    control: Control, submit: Callable[..., str], line: MakeLine, read_batch: Callable[[str], Batch]
) -> None:
    good, bad = submit([line(0)]), submit([line(1), line(1)])
    stop = threading.Event()
    thread = threading.Thread(target=control.help_alone, args=(stop,))
    thread.start()
    try:
        for _ in range(400):
            if read_batch(good).state != "validating" and read_batch(bad).state == "failed":
                break
            threading.Event().wait(0.05)
    finally:
        stop.set()
        thread.join()
    assert read_batch(good).state == "in_progress"
    assert read_batch(bad).state == "failed"


def test_purging_deletes_the_objects_of_expired_files_and_old_days_only(
    control: Control, submit: Callable[..., str], line: MakeLine, maker: sessionmaker[Session], storage: Storage
) -> None:
    submit([line(0)])
    with maker() as session:
        (key,) = session.execute(text("SELECT object_key FROM file")).scalars()
    control.purge()
    assert storage.exists(key)
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET state = 'failed', failed_at = now()"))
        session.execute(text("UPDATE file SET expires_at = now() - interval '1 day'"))
    control.purge()
    assert not storage.exists(key)


def test_a_batch_that_cannot_be_finished_does_not_keep_others_from_their_end(
    control: Control,
    submit_valid: Callable[..., str],
    line: MakeLine,
    maker: sessionmaker[Session],
    read_batch: Callable[[str], Batch],
) -> None:
    broken, good = submit_valid([line(0)]), submit_valid([line(1)])
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET state = 'done'"))  # without results: counters and results disagree
        session.execute(text("UPDATE batch SET state = 'finalizing', outcome = 'completed', finalizing_at = now()"))
        session.execute(text("UPDATE batch SET num_requests = 0 WHERE id = :id"), {"id": good})
    stop = threading.Event()
    thread = threading.Thread(target=control.help_alone, args=(stop,))
    thread.start()
    try:
        for _ in range(400):
            if read_batch(good).state == "completed":
                break
            threading.Event().wait(0.05)
    finally:
        stop.set()
        thread.join()
    assert read_batch(good).state == "completed"
    assert read_batch(broken).state == "finalizing"
