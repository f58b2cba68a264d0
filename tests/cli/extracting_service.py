"""The roles of a service that work on extractions, in a thread of the test, and what the service keeps and bills."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session, sessionmaker

from cli.calls import Calls
from cli.client import make_client
from features.documents.tables import Extraction
from jobs.database import connect, sessions
from jobs.storage import Storage
from tests.all_settings import Settings
from tests.cli.service import Service
from tests.features.documents.answering import Answering
from tests.flows.advancers import extractions_of

_ALL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractingService:
    """A service whose extractions are worked on by the test."""

    service: Service
    engine: Engine
    answering: Answering = field(init=False)

    def __post_init__(self) -> None:
        answering = Answering(self.maker, Storage(self.service.storage_url), Settings())
        object.__setattr__(self, "answering", answering)

    @property
    def maker(self) -> sessionmaker[Session]:
        return sessions(self.engine)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work on all extractions while the block lasts."""
        is_over = threading.Event()

        def work() -> None:
            while not is_over.wait(0.02):
                self.work()

        with ThreadPoolExecutor(1) as threads:
            worker = threads.submit(work)
            try:
                yield
            finally:
                is_over.set()
        worker.result()

    def work(self) -> None:
        """Advance each open extraction once, and answer what it asks."""
        with self.maker() as session:
            open_ids = session.scalars(select(Extraction.id).where(Extraction.ended_at.is_(None))).all()
        for extraction_id in open_ids:
            extractions_of(self.maker, self.answering.storage, self.answering.settings).advance(extraction_id)
        self.answering.work_off()

    def billed_tokens(self) -> int:
        with self.maker() as session:
            return int(session.scalar(text("SELECT coalesce(sum(input_tokens), 0) FROM ledger")) or 0)

    def stored(self) -> dict[str, list[dict[str, Any]]]:
        """Return all that the tenant has at the service, by kind."""
        with make_client(self.service.base_url, self.service.api_key) as client:
            calls = Calls(client)
            kinds = ("collections", "extractions", "files", "batches")
            return {kind: calls.pages(f"/{kind}", limit=_ALL) for kind in kinds}


@contextmanager
def extracting_service(service: Service) -> Iterator[ExtractingService]:
    engine = connect(service.database)
    yield ExtractingService(service=service, engine=engine)
    engine.dispose()
