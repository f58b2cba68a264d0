"""A tenant with documents, an index of them, and its processing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from features.documents.tables import Collection
from features.retrieval import creating
from features.retrieval.creating import CreateIndex
from features.retrieval.tables import PassageIndex
from jobs import served_models
from jobs.lines.endpoints import LineKind
from jobs.storage import Storage, store_owner
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.features.retrieval.answering import MADE, IndexAnswering
from tests.features.retrieval.builds import FEW, Builds, MakeBuilds
from tests.flows.advancers import Indexes, indexes_of

MakeCollection = Callable[..., Collection]
MakeIndex = Callable[..., PassageIndex]
Run = Callable[[PassageIndex], PassageIndex]


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def model(session: Session) -> str:
    """The name of an embedding model."""
    served_models.add_model(session, "minilm", "/models/m", serves=LineKind.POOL, input_price_picos=1_000_000)
    served_models.note_embedding(session, "minilm", MADE)
    session.commit()
    return "minilm"


@pytest.fixture
def make_index(session: Session, tenant: Tenant, settings: Settings, make_collection: MakeCollection) -> MakeIndex:
    """Accept an index of these documents; keywords are of the create call; committed."""

    def make(contents: Mapping[str, str], **wishes: Any) -> PassageIndex:
        wanted = CreateIndex(
            collection_id=make_collection(contents).id, **{"max_tokens": 64, "overlap_tokens": 0} | wishes
        )
        index = creating.create_index(session, tenant, wanted, settings, key_id="key_1")
        session.commit()
        return index

    return make


@pytest.fixture
def answering(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> IndexAnswering:
    return IndexAnswering(maker, storage, settings)


@pytest.fixture
def indexes(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Indexes:
    return indexes_of(maker, storage, settings)


@pytest.fixture
def run(session: Session, indexes: Indexes, answering: IndexAnswering) -> Run:
    """Let control workers and workers alternate until an index has ended."""

    def run(index: PassageIndex) -> PassageIndex:
        answering.take_turns(session, indexes, index)
        return index

    return run


@pytest.fixture
def make_builds(
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    answering: IndexAnswering,
    make_collection: Callable[..., Collection],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> MakeBuilds:
    """Make a collection, by default of `FEW`, and builds of its indexes, with an embedding model or without one."""
    monkeypatch.setattr("features.retrieval.segments._MAX_DOCUMENTS", 2)
    monkeypatch.setattr("features.retrieval.segments._MAX_INPUTS", 2)
    store_owner.adopt(maker, storage)

    def make(contents: Mapping[str, str] = FEW, *, has_model: bool = True, **owner: Tenant) -> Builds:
        wishes = {"embedding_model": model} if has_model else {}
        return Builds(maker, storage, settings, answering, make_collection(contents, **owner), wishes)

    return make
