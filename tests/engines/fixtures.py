"""A worker of a real server, without its process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs import served_models
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.workers.remote.builders import Post
from workers.remote.checks import first_check, kind_of
from workers.remote.exchange import Patience
from workers.remote.identity import identify
from workers.remote.keys import address_of
from workers.remote.sizes import Sizes

Connect = Callable[..., Post]


@pytest.fixture
def settings() -> Settings:
    return Settings(chunk_lines=64, flush_seconds=0.5, heartbeat_seconds=5, lease_seconds=600, worker_chunks=2)


@pytest.fixture
def connect(maker: sessionmaker[Session], storage: Storage, settings: Settings, tenant: Tenant) -> Iterator[Connect]:
    """Return a function that opens a worker of the server at a URL, as the command does."""
    posts: list[Post] = []

    def open_post(url: str, sizes: Sizes | None = None) -> Post:
        address = address_of(url, None)
        identity = identify(address, named=None, served="demo")
        check, name = first_check(address, identity, has_tokenizer=False)
        with maker.begin() as session:
            served_models.note_kind(session, "demo", kind_of(check))
        posts.append(Post(address.url, maker, storage, settings))
        posts[-1].open(identity=identity, answers_as=name, sizes=sizes, seats=16, patience=Patience())
        return posts[-1]

    yield open_post
    for post in posts:
        post.close()
