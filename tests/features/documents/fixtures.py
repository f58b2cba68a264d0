"""A tenant with documents, an extraction of them, and its processing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import orjson
import pytest
from sqlalchemy.orm import Session, sessionmaker

from features.documents import lifecycle
from features.documents.collections import collection, documents
from features.documents.extraction.course.stored_plan import StoredPlan
from features.documents.lifecycle import CreateExtraction
from features.documents.tables import Collection, Extraction
from features.retrieval.corpora import asked_index
from jobs import files, served_models
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.features.documents.answering import Answering
from tests.flows.advancers import Extractions, extractions_of

SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}

MakeCollection = Callable[..., Collection]
MakeExtraction = Callable[..., Extraction]


@pytest.fixture
def settings() -> Settings:
    return Settings()


@pytest.fixture
def make_collection(
    session: Session, storage: Storage, tenant: Tenant, settings: Settings
) -> Callable[..., Collection]:
    """Make a collection of text files, named by their contents' names; committed."""

    def make(contents: Mapping[str, str], *, owner: Tenant = tenant) -> Collection:
        made = collection.create_collection(session, owner.id, "papers", metadata=None, settings=settings)
        for name, content in contents.items():
            key = files.new_object_key(owner.id)
            size = storage.put(key, content.encode())
            new = files.NewFile(object_key=key, filename=name, purpose="user_data", size_bytes=size)
            file = files.create_file(session, owner.id, new)
            sources = documents.file_sources(session, owner.id, {file.id: None})
            documents.add_documents(session, made, sources, settings=settings)
        session.commit()
        return made

    return make


@pytest.fixture
def make_extraction(
    session: Session, tenant: Tenant, settings: Settings, make_collection: MakeCollection
) -> MakeExtraction:
    """Accept an extraction of these documents; `plan` is of what is asked, keywords of the create call; committed."""
    served_models.add_model(session, "m", "/models/m", input_price_picos=1_000_000, output_price_picos=2_000_000)

    def make(
        contents: Mapping[str, str],
        *,
        schema: Mapping[str, Any] = SCHEMA,
        plan: Mapping[str, Any] = MappingProxyType({}),
        **wishes: Any,
    ) -> Extraction:
        made = make_collection(contents)
        asked = {"model": "m", "params": {"temperature": 0.0}, **plan}
        planned = StoredPlan(schema=orjson.dumps(schema).decode(), **asked)
        wanted = CreateExtraction(collection_id=made.id, plan=planned, **wishes)
        extraction = lifecycle.create_extraction(
            session, tenant, wanted, settings, key_id="key_1", find_index=asked_index
        )
        session.commit()
        return extraction

    return make


@pytest.fixture
def answering(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Answering:
    return Answering(maker, storage, settings)


@pytest.fixture
def extractions(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Extractions:
    return extractions_of(maker, storage, settings)


@pytest.fixture
def run(session: Session, extractions: Extractions, answering: Answering) -> Callable[[Extraction], Extraction]:
    """Let control workers and workers alternate until an extraction has ended."""

    def run(extraction: Extraction) -> Extraction:
        answering.take_turns(session, extractions, extraction)
        return extraction

    return run
