"""Tests of control workers' periodic cleanup: steps are independent, and full scans are done by one worker for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import browser_sessions
from jobs.accounts.spill_days import TODAY
from jobs.settings import Settings
from jobs.storage import Storage, StoredObject
from workers.purging import Purging

MakeLine = Callable[..., dict[str, Any]]


@pytest.fixture
def purge(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Purging:
    return Purging(maker, storage, settings)


def test_purging_deletes_the_objects_of_expired_files_and_old_days_only(
    purge: Purging, submit: Callable[..., str], line: MakeLine, maker: sessionmaker[Session], storage: Storage
) -> None:
    submit([line(0)])
    with maker() as session:
        (key,) = session.execute(text("SELECT object_key FROM file")).scalars()
    purge.run()
    assert storage.exists(key)
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET state = 'failed', failed_at = now()"))
        session.execute(text("UPDATE file SET expires_at = now() - interval '1 day'"))
    purge.run()
    assert not storage.exists(key)


def test_purging_forgets_sessions_that_are_over(purge: Purging, maker: sessionmaker[Session]) -> None:
    with maker.begin() as session:
        for _ in range(2):
            browser_sessions.begin(session, key_id="key_x", key_hash="x", user_agent="")
        session.execute(
            text("UPDATE browser_session SET expires_at = now() WHERE id = (SELECT max(id) FROM browser_session)")
        )
    purge.run()
    with maker() as session:
        assert session.scalar(text("SELECT count(*) FROM browser_session")) == 1


def test_purging_forgets_days_of_spending_and_what_their_chunks_lacked(
    purge: Purging, maker: sessionmaker[Session]
) -> None:
    """The sum of a day is kept as long as a line of it may still end."""
    today = f"SELECT age, {TODAY} - age AS day FROM unnest(ARRAY[0, 1, 29, 31]) AS age"
    with maker.begin() as session:
        session.execute(text(f"INSERT INTO spill_day (model, day) SELECT 'm', day FROM ({today}) AS days"))
        session.execute(
            text(f"""
                INSERT INTO spill_lack (chunk_id, batch_id, day, fence, picos)
                SELECT age, 'b', day, 1, 5 FROM ({today}) AS days
            """)
        )
    purge.run()
    with maker() as session:
        ages = session.scalars(text(f"SELECT {TODAY} - day FROM spill_day ORDER BY day DESC")).all()
        assert ages == [0, 1, 29]
        assert session.scalars(text("SELECT chunk_id FROM spill_lack")).all() == [0]


class ListedStorage(Storage):
    """Counts its listings."""

    num_listed = 0

    def iter_objects(self) -> Iterator[StoredObject]:
        self.num_listed += 1
        return super().iter_objects()


def test_one_control_worker_lists_the_store_for_all(maker: sessionmaker[Session], settings: Settings) -> None:
    storage = ListedStorage("memory://")
    workers = [Purging(maker, storage, settings) for _ in range(3)]

    def num_lists() -> int:
        storage.num_listed = 0
        for worker in workers:
            worker.run()
        return storage.num_listed

    num_lists()  # marks the store as its own
    with maker.begin() as session:
        session.execute(text("UPDATE chore SET due_at = now()"))
    assert [num_lists(), num_lists()] == [2, 0]  # for files, and for indexes
    with maker.begin() as session:
        left = text("SELECT due_at - now() > interval '5 hours' FROM chore WHERE name = 'sweep'")
        assert session.scalar(left), "not after the hour for which it was held"
        session.execute(text("UPDATE chore SET due_at = now()"))
    assert num_lists() == 2


def test_a_chore_whose_worker_was_killed_is_begun_again(maker: sessionmaker[Session], settings: Settings) -> None:
    class Killed(Exception):
        pass

    class DeadlyStorage(ListedStorage):
        def iter_objects(self) -> Iterator[StoredObject]:
            raise Killed

    storage = DeadlyStorage("memory://")
    Purging(maker, storage, settings).run()
    with maker.begin() as session:
        session.execute(text("UPDATE chore SET due_at = now()"))
    Purging(maker, storage, settings).run()  # it fails, and logs the failure
    with maker.begin() as session:
        is_held = text("SELECT due_at > now() AND due_at <= now() + interval '1 hour' FROM chore WHERE name = 'sweep'")
        assert session.scalar(is_held)
