"""The API on a real socket, with access to the parts behind it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from api.app import create_app
from api.server import ServerConfig, connections_of
from jobs.accounts.keys import create_key
from jobs.accounts.tenants import create_tenant
from jobs.database import connect
from jobs.served_models import add_model
from jobs.states import AskedPriority
from jobs.storage.access import MARKER
from tests.all_settings import Settings
from tests.api.waiting import running
from tests.api.witness import Witness

MODEL = "org/tiny"


witnesses: list[Witness] = []
"""Of every API that this process has served."""


@cache
def documented() -> dict[str, Any]:
    """Return /openapi.json. It depends on no setting, and takes 0.8 s to make."""
    return create_app(Settings()).openapi()


@contextmanager
def serving(settings: Settings) -> Iterator[str]:
    """Serve the app on a free port of this machine, in a thread; yield its base URL without /v1."""
    witness = Witness(create_app(settings), documented())
    witnesses.append(witness)
    with running(ServerConfig(witness, connections_of(settings), port=0)) as url:
        yield url


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One running API, with access to the parts behind it."""

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
        """Return the names of the objects in the store, including unfinished ones but not the ownership marker."""
        names = {str(path.relative_to(self.objects)) for path in self.objects.rglob("*") if path.is_file()}
        return names - {MARKER}


_numbers = itertools.count()


@contextmanager
def deploying(
    new_database: Callable[[], str], new_folder: Callable[[str], Path]
) -> Iterator[Callable[..., Deployment]]:
    """Yield a function that starts an API with the given settings and one model."""
    with ExitStack() as stack:

        def start(**overrides: Any) -> Deployment:
            objects = new_folder("objects")
            settings = Settings(database_url=new_database(), storage_url=f"file://{objects}", **overrides)
            engine = connect(settings.database_url)
            stack.callback(engine.dispose)
            with Session(engine) as session, session.begin():
                add_model(session, MODEL, "/models/tiny")
            url = stack.enter_context(serving(settings))
            return Deployment(url=url, settings=settings, engine=engine, objects=objects)

        yield start


@contextmanager
def serving_any(new_folder: Callable[[str], Path]) -> Iterator[Callable[..., str]]:
    """Yield a function that starts an API with the given settings, even without a database, and returns its URL."""
    with ExitStack() as stack:

        def start(**overrides: Any) -> str:
            if "storage_url" not in overrides:
                overrides["storage_url"] = f"file://{new_folder('objects')}"
            return stack.enter_context(serving(Settings(**overrides)))

        yield start
