"""A worker of a fake server: a real database and store, lines that the server answers well or as they ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from tests.workers.remote.builders import Post
from tests.workers.remote.fake_server import FakeServer
from tests.workers.remote.misbehaviours import MISBEHAVIOURS


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
