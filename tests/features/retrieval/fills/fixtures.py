"""A tenant's indexes, and the processing of its lookups."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.settings import Settings
from jobs.storage import Storage
from tests.features.retrieval.fills.finding import CATS, DOGS, Finding


@pytest.fixture
def finding(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Finding:
    return Finding(maker, storage, settings, passages={"index_1": {"cats.txt": CATS, "dogs.txt": DOGS}})
