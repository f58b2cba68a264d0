"""A real server on a real socket, and the official client pointed at it. Every test has tenants of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from api.app import create_app
from api.server import ServerConfig, connections_of
from jobs.accounts.keys import create_key
from jobs.accounts.tenants import create_tenant
from jobs.database import connect
from jobs.served_models import add_model
from jobs.settings import Settings
from jobs.states import AskedPriority
from jobs.storage.access import MARKER
from tests.api.waiting import running
from tests.api.witness import Witness

MODEL = "org/tiny"


_witnesses: list[Witness] = []


@pytest.fixture(autouse=True)
def every_answer_is_documented() -> Iterator[None]:
    """Fail a test whose calls were answered with something that /openapi.json does not have."""
    yield
    surprises = [surprise for witness in _witnesses for surprise in witness.surprises]
    for witness in _witnesses:
        witness.surprises.clear()
    assert surprises == []


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serve the app on a free port of this machine, in a thread; yield its base URL without /v1."""
    witness = Witness(create_app(settings))
    _witnesses.append(witness)
    with running(ServerConfig(witness, connections_of(settings), port=0)) as url:
        yield url


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One running API with what a test may want to look at behind it."""

    url: str
    settings: Settings
    engine: Engine
    objects: Path  # the folder of the object store

    def new_key(self, best_priority: AskedPriority = AskedPriority.URGENT, **limits: int) -> str:
        """Create a tenant and return its key."""
        with Session(self.engine) as session, session.begin():
            tenant = create_tenant(session, f"tenant-{next(_numbers)}", best_priority=best_priority, **limits)
            return create_key(session, tenant.id)[1]

    def object_names(self) -> set[str]:
        """Name the objects in the store, unfinished ones too, but for the one that says whose it is."""
        names = {str(path.relative_to(self.objects)) for path in self.objects.rglob("*") if path.is_file()}
        return names - {MARKER}


_numbers = itertools.count()


@pytest.fixture(scope="session")
def deploy(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Deployment]]:
    """Return a function that starts an API with the given settings and one model."""
    with ExitStack() as stack:

        def start(**overrides: Any) -> Deployment:
            objects = tmp_path_factory.mktemp("objects")
            settings = Settings(database_url=new_database(), storage_url=f"file://{objects}", **overrides)
            engine = connect(settings.database_url)
            stack.callback(engine.dispose)
            with Session(engine) as session, session.begin():
                add_model(session, MODEL, "/models/tiny")
            url = stack.enter_context(serving(settings))
            return Deployment(url=url, settings=settings, engine=engine, objects=objects)

        yield start


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Return a function that starts an API with the given settings, whatever its database is, and returns its URL."""
    with ExitStack() as stack:

        def start(**overrides: Any) -> str:
            if "storage_url" not in overrides:
                overrides["storage_url"] = f"file://{tmp_path_factory.mktemp('objects')}"
            return stack.enter_context(serving(Settings(**overrides)))

        yield start


@pytest.fixture(scope="session")
def deployment(deploy: Callable[..., Deployment]) -> Deployment:
    """The API with default settings that most tests share."""
    return deploy()


@pytest.fixture
def new_client(deployment: Deployment) -> Iterator[Callable[..., OpenAI]]:
    """Return a function that makes an official client for a new tenant."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(
            OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.new_key(**limits), max_retries=0)
        )


@pytest.fixture
def client(new_client: Callable[..., OpenAI]) -> OpenAI:
    return new_client()


@pytest.fixture
def stored_objects(deployment: Deployment) -> Callable[[], set[str]]:
    """Return a function that names the objects in the store, unfinished ones too."""
    return deployment.object_names


@pytest.fixture
def http(deployment: Deployment) -> Iterator[httpx.Client]:
    """A plain client for what the official one cannot send; it has a key of its own tenant."""
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=20) as plain:
        yield plain


@pytest.fixture(scope="session")
def input_lines() -> Callable[..., bytes]:
    """Return a function that writes an input file of `count` chat requests."""

    def write(count: int, *, model: str = MODEL) -> bytes:
        body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
        line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        return b"".join(json.dumps({"custom_id": f"line-{n}", **line}).encode() + b"\n" for n in range(count))

    return write
