"""A worker of a fake server: a real database and store, lines that the server answers well or as they ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.forecasts import snapshot
from jobs.settings import Settings
from jobs.states import EngineChoice
from jobs.storage import Storage
from tests.workers.remote.builders import QUICK, Post
from tests.workers.remote.desk import Desk
from tests.workers.remote.fake_server import FakeServer
from tests.workers.remote.misbehaviours import MISBEHAVIOURS
from tests.workers.remote.spilling import SubmitLines
from workers.remote import exchange as exchanging
from workers.remote.calls import caller as calling
from workers.remote.calls.caller import Caller
from workers.remote.calls.pace import Pace
from workers.remote.checks import chat_check
from workers.remote.dialects import VLLM
from workers.remote.exchange import Address, Patience
from workers.remote.identity import Identity


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer(behaviours=dict(MISBEHAVIOURS))
    server.start()
    yield server
    server.close()


@pytest.fixture
def post(server: FakeServer, maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Iterator[Post]:
    post = Post(server.url, maker, storage, settings)
    yield post
    post.close()


@pytest.fixture
def submit_late(post: Post, submit_valid: SubmitLines) -> SubmitLines:
    """Submit lines that may leave, of a model that no worker of the house serves."""

    def submit(lines: list[dict[str, Any]], **given: Any) -> str:
        batch_id = submit_valid(lines, engine=EngineChoice.ANY, **given)
        with post.maker.begin() as session:
            session.execute(text("UPDATE tenant SET may_leave_house = TRUE"))
            snapshot.take(session)
        return batch_id

    return submit


@pytest.fixture
def patience() -> Patience:
    return QUICK


@pytest.fixture
def num_seats() -> int:
    return 8


@pytest.fixture
def desk(server: FakeServer, patience: Patience, num_seats: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(calling, "_FIRST_COOL_DOWN_SECONDS", 0.02)
    monkeypatch.setattr(exchanging, "MAX_ANSWER_BYTES", 2**22)
    identity = Identity(dialect=VLLM, version=None, model="served")
    caller = Caller(
        Address(url=server.url), Pace(start=num_seats, most=num_seats), chat_check(identity), patience=patience
    )
    caller.start()
    yield Desk(server, caller)
    caller.close()
