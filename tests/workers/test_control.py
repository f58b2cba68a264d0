"""Tests of the control tasks: thin, repeatable, and able to work without hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
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
