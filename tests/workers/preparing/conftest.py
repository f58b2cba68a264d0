"""A tenant's documents and one set of readers, shared by all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import connect, sessions
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.database_roles import as_prepare
from tests.workers.preparing.builders import LIMITS, Library, Preparer
from workers.preparing.readers import ReaderPool


@pytest.fixture
def library(
    maker: sessionmaker[Session], storage: Storage, settings: Settings, tenant: Tenant, database_url: str
) -> Iterator[Library]:
    engine = connect(as_prepare(database_url))
    yield Library(sessions=maker, storage=storage, settings=settings, tenant=tenant, prepare_sessions=sessions(engine))
    engine.dispose()


@pytest.fixture(scope="module")
def started_pool() -> Iterator[tuple[ReaderPool, str]]:
    pool = ReaderPool(2, limits=LIMITS)
    yield pool, pool.start()
    pool.close()


@pytest.fixture
def preparer(library: Library, started_pool: tuple[ReaderPool, str]) -> Preparer:
    pool, parsers = started_pool
    return Preparer.of(library, pool, parsers=parsers)
