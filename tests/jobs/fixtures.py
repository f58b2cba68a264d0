"""Initial rows: a tenant, files, batches; submitted and validated input."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session, sessionmaker

from cli.embedded.binaries import find_postgres
from jobs import served_models
from jobs.accounts import budgets, tenants
from jobs.database import connect, sessions
from jobs.ids import new_id
from jobs.states import AskedPriority, BatchState
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, File, Tenant
from tests.all_settings import Settings
from tests.jobs.batches.control import validate


@pytest.fixture(scope="session")
def pg_dump() -> Path:
    """The program of the same installation as the tests' server."""
    return find_postgres().postgres.with_name("pg_dump")


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = connect(database_url, connections=20)
    yield engine
    engine.dispose()


@pytest.fixture
def maker(engine: Engine) -> sessionmaker[Session]:
    """Sessions for tests that need several at once."""
    return sessions(engine)


@pytest.fixture
def session(maker: sessionmaker[Session]) -> Iterator[Session]:
    """An open session; a test commits if others must see its work."""
    with maker() as session:
        yield session


@pytest.fixture
def statements(engine: Engine) -> list[tuple[str, Any]]:
    """Every statement sent from here on, with its values."""
    sent: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, values: Any, *___: object) -> None:
        sent.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    return sent


@pytest.fixture
def tenant(session: Session) -> Tenant:
    tenant = tenants.create_tenant(session, "acme", best_priority=AskedPriority.URGENT)
    session.commit()
    return tenant


MakeFile = Callable[..., File]
MakeBatch = Callable[..., Batch]
MakeChunk = Callable[..., Chunk]


@pytest.fixture
def make_file(session: Session, tenant: Tenant) -> MakeFile:
    """Insert a file row without an object; keywords override its columns."""

    def make(**columns: Any) -> File:
        file_id = new_id("file")
        values: dict[str, Any] = {
            "id": file_id,
            "tenant_id": tenant.id,
            "purpose": "batch",
            "filename": "in.jsonl",
            "size_bytes": 1000,
            "object_key": f"{tenant.id}/{file_id}",
            "num_requests": 10,
            "estimated_input_tokens": 100,
            "estimated_output_tokens": 200,
        }
        file = File(**values | columns)
        session.add(file)
        session.commit()
        return file

    return make


@pytest.fixture
def make_batch(session: Session, tenant: Tenant, make_file: MakeFile) -> MakeBatch:
    """Insert a batch row in any state and book its reservation (`reserved_tokens`); keywords override its columns."""

    def make(**columns: Any) -> Batch:
        now = datetime.now(UTC)
        values: dict[str, Any] = {
            "id": new_id("batch"),
            "tenant_id": tenant.id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "fingerprint": new_id("fp"),
            "state": BatchState.VALIDATING,
            "expires_at": now + timedelta(hours=24),
            "created_at": now,
        }
        values |= columns
        if "input_file_id" not in values:
            values["input_file_id"] = make_file(tenant_id=values["tenant_id"]).id
        batch = Batch(**values)
        session.add(batch)
        session.flush()
        if batch.reserved_tokens:
            budgets.reserve(session, batch.tenant_id, batch.reserved_tokens)
        session.commit()
        return batch

    return make


@pytest.fixture
def make_chunk(session: Session) -> MakeChunk:
    """Insert a chunk of a batch, ready unless its `state` is given; keywords override its columns."""

    def make(batch: Batch, **columns: Any) -> Chunk:
        values: dict[str, Any] = {
            "batch_id": batch.id,
            "tenant_id": batch.tenant_id,
            "model": "m",
            "priority": batch.priority,
            "expires_at": batch.expires_at,
            "first_line": 0,
            "num_lines": 4,
            "num_requests": 3,
            "byte_start": 0,
            "byte_end": 9,
            "estimated_tokens": 50,
        }
        chunk = Chunk(**values | columns)
        session.add(chunk)
        session.commit()
        return chunk

    return make


@pytest.fixture
def storage() -> Storage:
    return Storage("memory://")


@pytest.fixture
def settings() -> Settings:
    return Settings(chunk_lines=4, max_listed_errors=5, max_batch_lines=100, max_line_bytes=2000)


def _count(content: bytes) -> int:
    return sum(not line.isspace() for line in content.splitlines() if line)


def _request_line(custom_id: str, *, model: str = "m", **fields: Any) -> str:
    """Return one valid input line; keywords replace or add top-level fields."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line | fields)


@pytest.fixture
def request_line() -> Callable[..., str]:
    """Make one valid input line: `request_line(custom_id, model=…, url=…)`."""
    return _request_line


Submit = Callable[..., Batch]


@pytest.fixture
def submit(session: Session, storage: Storage, make_file: MakeFile, make_batch: MakeBatch, tenant: Tenant) -> Submit:
    """Store an input file of the given lines and insert its batch, committed; models `m` and `other` exist."""
    for name in ("m", "other"):
        served_models.add_model(
            session, name, f"/models/{name}", input_price_picos=1_000_000, output_price_picos=2_000_000
        )

    def submit(lines: Sequence[str] | bytes, **columns: Any) -> Batch:
        content = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
        file = make_file(
            tenant_id=columns.get("tenant_id", tenant.id), size_bytes=len(content), num_requests=_count(content)
        )
        storage.put(file.object_key, content)
        return make_batch(**{"input_file_id": file.id} | columns)

    return submit


@pytest.fixture
def run(session: Session, storage: Storage, settings: Settings, submit: Submit) -> Submit:
    """Submit and validate a batch of valid lines `a0`, `a1`, … (a number) or of given lines, committed."""

    def run(lines: int | Sequence[str], **columns: Any) -> Batch:
        given = [_request_line(f"a{index}") for index in range(lines)] if isinstance(lines, int) else lines
        batch = submit(given, **columns)
        validate(session, storage, batch.id, settings=settings)
        return batch

    return run
