"""A dispatcher on a real database, its hints, and one live worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import due
from jobs.batches.due import Due
from jobs.chunks import fleet
from jobs.database import autocommit
from jobs.settings import Settings
from jobs.storage import Storage
from tests.workers.dispatcher.builders import MakeLines, RecordedHints
from workers.dispatcher import Dispatcher, Plan


@pytest.fixture
def hints() -> RecordedHints:
    return RecordedHints()


@pytest.fixture
def look(maker: sessionmaker[Session], settings: Settings) -> Callable[[], Due]:
    def look() -> Due:
        with autocommit(maker) as session:
            return due.look(session, again_seconds=settings.hint_again_seconds)

    return look


@pytest.fixture
def dispatcher(
    maker: sessionmaker[Session], storage: Storage, hints: RecordedHints, settings: Settings, look: Callable[[], Due]
) -> Dispatcher:
    """A dispatcher whose ticks do nothing that its poll would not have found before."""

    class Watched(Dispatcher):
        def tick(self) -> Plan:
            found, before = look(), _states(maker)
            plan = super().tick()
            has_acted = plan.validate or plan.finalise or plan.run or _states(maker) != before
            assert found.is_any or not has_acted, "it would not have ticked by itself"
            return plan

    return Watched(maker, storage, hints=hints, settings=settings)


def _states(maker: sessionmaker[Session]) -> list[Any]:
    with maker() as session:
        states = text("SELECT id, state FROM batch UNION ALL SELECT CAST(id AS text), state FROM chunk ORDER BY 1")
        return list(session.execute(states))


@pytest.fixture
def worker(maker: sessionmaker[Session]) -> str:
    """A live worker of the demo model with two slots."""
    with maker.begin() as session:
        fleet.register(session, worker_id="worker_1", model="demo", max_chunks=2, max_model_len=512)
    return "worker_1"


@pytest.fixture
def lines(line: Callable[..., dict[str, Any]]) -> MakeLines:
    return lambda count: [line(number) for number in range(count)]


@pytest.fixture
def no_other_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a dispatcher that neither counts the queue nor handles schedules."""
    for each in ("_COUNT_LOOK_SECONDS", "_COUNT_SECONDS", "_SCHEDULES_SECONDS"):
        monkeypatch.setattr(f"workers.dispatcher.{each}", 1000.0)
