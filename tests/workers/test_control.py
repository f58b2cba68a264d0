"""Tests of the control tasks: thin, repeatable, and able to work without hints."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches.sweeps import DueBatch
from jobs.settings import Settings
from jobs.states import BatchState, Priority
from jobs.storage import Storage
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


def test_who_waits_for_batches_is_woken_by_those_that_have_ended_alone(
    maker: sessionmaker[Session], storage: Storage, settings: Settings, submit: Callable[..., str], line: MakeLine
) -> None:
    ended: list[str] = []

    def do(batch_id: str) -> None:
        waiting = DueBatch(
            batch_id=batch_id,
            tenant_id="any",
            priority=Priority.NORMAL,
            state=BatchState.VALIDATING,
            waited=timedelta(),
        )
        control = Control(maker, storage, settings, has_ended=lambda: ended.append(batch_id))
        assert control.do(waiting)

    good, bad = submit([line(0)]), submit([line(1), line(1)])
    for batch_id in (good, bad):
        do(batch_id)
    assert ended == [bad]
