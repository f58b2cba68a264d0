"""A database and an API for each module that requests one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.extracting_service import ExtractingService, extracting_service
from tests.cli.service import Service, Tokenmill, run, serving, write_lines


@pytest.fixture(scope="module")
def database(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture(scope="module")
def api_key(database: str) -> str:
    admin = {"TOKENMILL_DATABASE_URL": database}
    assert run("tenants", "create", "acme", **admin).exit_code == 0
    assert run("models", "add", "tiny", "/models/tiny", "--unchecked", **admin).exit_code == 0
    return run("keys", "create", "acme", **admin).stdout.strip()


@pytest.fixture(scope="module")
def service(database: str, api_key: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(database, tmp_path_factory.mktemp("api"), api_key=api_key) as service:
        yield service


@pytest.fixture(scope="module")
def server(service: Service) -> Tokenmill:
    """Return the command, connected to the API."""
    return service.run


@pytest.fixture(scope="module")
def base_url(service: Service) -> str:
    return service.base_url


@pytest.fixture(scope="module")
def extracting(service: Service) -> Iterator[ExtractingService]:
    with extracting_service(service) as extracting:
        yield extracting


@pytest.fixture
def batch_file(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "in.jsonl")
