"""A tenant with two stores: files that runs read, and files that they write."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import stores
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.features.pipelines.work.run_builders import House


@pytest.fixture
def house(maker: sessionmaker[Session], storage: Storage, settings: Settings, tenant: Tenant, tmp_path: Path) -> House:
    folders = [tmp_path / "documents", tmp_path / "results"]
    with maker.begin() as session:
        session.execute(text("UPDATE model SET input_price_picos = 1000000, output_price_picos = 1000000"))
        for folder in folders:
            folder.mkdir()
            stores.add_store(
                session, tenant.id, folder.name, f"file://{folder}", options={}, is_writable=folder.name == "results"
            )
    return House(maker, storage, settings, tenant.id, documents=folders[0], results=folders[1])
