"""The worker's environment, real but small: the demo model's tokenizer, a database, a store, a validated batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs import files, served_models
from jobs.accounts import tenants
from jobs.batches import lifecycle
from jobs.batches.submission import CreateBatch
from jobs.batches.validation import validate_batch
from jobs.database import connect, sessions
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.input_estimate import InputEstimator
from jobs.states import AskedPriority
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.all_settings import Settings

DEMO_MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo_model"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO_MODEL)


@pytest.fixture
def maker(database_url: str) -> Iterator[sessionmaker[Session]]:
    engine = connect(database_url, connections=20)
    yield sessions(engine)
    engine.dispose()


@pytest.fixture
def storage() -> Storage:
    return Storage("memory://")


@pytest.fixture
def settings() -> Settings:
    return Settings(chunk_lines=4, flush_seconds=0.02, heartbeat_seconds=0.05, lease_seconds=20, worker_chunks=2)


@pytest.fixture
def line() -> Callable[..., dict[str, Any]]:
    """Make the input line of a number; keywords replace or add parameters of its body."""

    def make(number: int, **body: Any) -> dict[str, Any]:
        asked = {"model": "demo", "messages": [{"role": "user", "content": f"Hello {number}"}], "max_tokens": 4}
        return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": asked | body}

    return make


SubmitLines = Callable[..., str]


@pytest.fixture
def tenant(maker: sessionmaker[Session]) -> Tenant:
    with maker.begin() as session:
        served_models.add_model(session, "demo", str(DEMO_MODEL))
        return tenants.create_tenant(session, "acme", limit_tokens=1_000_000, best_priority=AskedPriority.URGENT)


@pytest.fixture
def submit(maker: sessionmaker[Session], storage: Storage, settings: Settings, tenant: Tenant) -> SubmitLines:
    """Upload and create a batch as the API does, for the tenant or another one; return its id."""
    default = tenant

    def submit(
        lines: list[dict[str, Any]], *, endpoint: str = CHAT_ENDPOINT, tenant: Tenant = default, **wishes: Any
    ) -> str:
        content = "\n".join(json.dumps(line) for line in lines).encode()
        estimator = InputEstimator(default_max_tokens=settings.default_max_tokens)
        estimator.feed(content)
        with maker.begin() as session:
            key = f"{tenant.id}/{len(content)}"
            new = files.NewFile(
                object_key=key,
                filename="in.jsonl",
                purpose="batch",
                size_bytes=storage.put(key, content),
                estimate=estimator.finish(),
            )
            file = files.create_file(session, tenant.id, new)
            wanted = CreateBatch(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **wishes)
            return lifecycle.create_batch(session, tenant, wanted, settings).id

    return submit


@pytest.fixture
def submit_valid(
    maker: sessionmaker[Session], storage: Storage, settings: Settings, submit: SubmitLines
) -> SubmitLines:
    """As `submit`, and validated: its chunks are ready."""

    def submit_valid(lines: list[dict[str, Any]], **given: Any) -> str:
        batch_id = submit(lines, **given)
        validate_batch(maker, storage, batch_id, settings=settings)
        return batch_id

    return submit_valid


@pytest.fixture
def read_batch(maker: sessionmaker[Session]) -> Callable[[str], Batch]:
    def read(batch_id: str) -> Batch:
        with maker() as session:
            return session.get_one(Batch, batch_id)

    return read
