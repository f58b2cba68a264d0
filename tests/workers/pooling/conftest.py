"""A tiny encoder with random weights, shared by all tests of a session, and a tenant that may use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from engine.pooling.embedder import Embedder
from jobs import served_models
from jobs.accounts import tenants
from jobs.lines.endpoints import LineKind
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.engine.pooling.builders import make_folder
from tests.workers.pooling.builders import MODEL, Desk


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("encoder")).path


@pytest.fixture(scope="session")
def embedder(encoder_folder: Path) -> Embedder:
    return Embedder(encoder_folder)


@pytest.fixture
def tenant(maker: sessionmaker[Session], encoder_folder: Path) -> Tenant:
    with maker.begin() as session:
        served_models.add_model(
            session, MODEL, str(encoder_folder), serves=LineKind.POOL, input_price_picos=3, output_price_picos=7
        )
        return tenants.create_tenant(session, "acme")


@pytest.fixture
def desk(
    submit_valid: Callable[..., str],
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
    embedder: Embedder,
) -> Desk:
    return Desk(submit_valid=submit_valid, sessions=maker, storage=storage, settings=settings, embedder=embedder)
