"""Tests of `tokenmill doctor`: each check finds its problem, and gives advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from cli.embedded.child import Child
from cli.embedded.valkey import prepare_valkey
from cli.status.doctor import Finding, Verdict, examine
from confined.isolation import Layer
from features.documents.extraction.documents.process import isolation
from jobs.database import connect, head_revision
from jobs.storage import Storage
from jobs.storage.access import MARKER
from jobs.storage.prepared import PREFIX
from tests.all_settings import Settings
from tests.cli.service import Service, typed
from tests.database_roles import as_owner, as_prepare, as_service, as_superuser


@pytest.fixture
def settings(database_url: str, valkey_url: str, tmp_path: Path) -> Settings:
    storage_url = (tmp_path / "objects").as_uri()
    Storage(storage_url).access.write_marker("database_1")
    return Settings(database_url=database_url, redis_url=valkey_url, storage_url=storage_url)


def found(settings: Settings) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(settings)}


def test_a_healthy_service_has_nothing_to_be_done(settings: Settings) -> None:
    findings = found(settings)
    assert {
        "versions",
        "database",
        "login",
        "schema",
        "clock",
        "workers",
        "broker",
        "store",
        "disk",
        "readers",
    } <= findings.keys()
    assert {name: one for name, one in findings.items() if one.verdict is Verdict.PROBLEM} == {}
    assert all(bool(one.advice) == (one.verdict is not Verdict.OK) for one in findings.values())


def test_a_database_without_tables_and_one_of_a_newer_release_are_told_apart(
    settings: Settings, empty_database: str
) -> None:
    empty = found(settings.model_copy(update={"database_url": empty_database}))["schema"]
    assert (empty.verdict, empty.advice) == (Verdict.PROBLEM, "Run `tokenmill db upgrade`.")
    engine = connect(as_owner(settings.database_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    try:
        newer = found(settings)["schema"]
        with engine.begin() as connection:
            connection.execute(text("UPDATE schema_floor SET revision = '9999'"))
        other = found(settings)["schema"]
    finally:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :own"), {"own": head_revision()})
            connection.execute(text("UPDATE schema_floor SET revision = '0001'"))
        engine.dispose()
    assert (newer.verdict, newer.advice) == (Verdict.OK, "")
    assert (other.verdict, other.advice) == (Verdict.PROBLEM, "Upgrade this installation.")


@pytest.mark.parametrize(
    ("as_whom", "verdict"),
    [(as_service, Verdict.OK), (as_owner, Verdict.WARNING), (as_superuser, Verdict.WARNING)],
)
def test_a_login_that_may_more_than_a_service_needs_is_named(
    settings: Settings, as_whom: Callable[[str], str], verdict: Verdict
) -> None:
    login = found(settings.model_copy(update={"database_url": as_whom(settings.database_url)}))["login"]
    assert login.verdict is verdict
    assert bool(login.advice) == (verdict is not Verdict.OK)


def test_a_store_without_a_marker_may_not_be_mounted(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "objects" / MARKER).unlink()
    assert found(settings)["store"].verdict is Verdict.WARNING
    (tmp_path / "objects").rmdir()
    assert found(settings)["store"].verdict is Verdict.WARNING
    assert not (tmp_path / "objects").exists()


@pytest.mark.parametrize(("as_whom", "verdict"), [(as_service, Verdict.OK), (as_prepare, Verdict.PROBLEM)])
def test_the_store_is_written_where_who_logs_in_writes(
    settings: Settings, tmp_path: Path, as_whom: Callable[[str], str], verdict: Verdict
) -> None:
    (tmp_path / "objects" / PREFIX).touch()  # a file: nothing can be written below
    findings = found(settings.model_copy(update={"database_url": as_whom(settings.database_url)}))
    assert findings["store"].verdict is verdict


def test_a_dead_database_and_broker_and_a_store_that_takes_nothing_are_found_together(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    broken = {
        "database_url": "postgresql://nobody@127.0.0.1:1/none",
        "redis_url": "redis://127.0.0.1:1/0",
        "storage_url": (tmp_path / "file").as_uri(),
    }
    findings = found(settings.model_copy(update=broken))
    problems = {name for name, one in findings.items() if one.verdict is Verdict.PROBLEM}
    assert problems == {"database", "broker", "store"}
    assert all(findings[name].advice for name in problems)


def test_the_broker_of_an_embedded_stack_is_asked_over_its_socket(settings: Settings, tmp_path: Path) -> None:
    server = prepare_valkey(tmp_path / "valkey", log_path=tmp_path / "valkey.log", run_dir=tmp_path / "run")
    child = Child(server.spec)
    child.start()
    try:
        child.wait_until_ready()
        broker = found(settings.model_copy(update={"redis_url": server.url}))["broker"]
    finally:
        child.stop()
    assert (broker.verdict, broker.advice) == (Verdict.OK, "")


@pytest.mark.parametrize("url", ["foo://x", "redis://127.0.0.1:99999/0"])
def test_a_wrong_url_of_the_broker_keeps_no_other_check_from_being_made(settings: Settings, url: str) -> None:
    findings = found(settings.model_copy(update={"redis_url": url}))
    assert findings["broker"].verdict is Verdict.PROBLEM
    assert findings["store"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("isolation_asked", "missing", "verdict"),
    [
        ("best", {Layer.FILES}, Verdict.WARNING),
        ("best", {Layer.NAMESPACES}, Verdict.OK),
        *(("required", {layer}, Verdict.PROBLEM) for layer in Layer),
        ("required", set(Layer), Verdict.PROBLEM),
        ("required", set(), Verdict.OK),
    ],
)
def test_layers_that_readers_lack_are_named(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    isolation_asked: str,
    missing: set[Layer],
    verdict: Verdict,
) -> None:
    monkeypatch.setattr(isolation, "missing_layers", lambda: frozenset(missing))
    readers = found(settings.model_copy(update={"reader_isolation": isolation_asked}))["readers"]
    assert readers.verdict is verdict
    assert all(f"{layer}: " in readers.said for layer in missing)
    assert bool(readers.advice) is (verdict is not Verdict.OK)


def test_models_that_open_batches_wait_for_are_named(settings: Settings, service: Service, batch_file: Path) -> None:
    service.validate(service.run("batch", "create", batch_file).stdout.strip())
    workers = found(settings.model_copy(update={"database_url": service.database}))["workers"]
    assert (workers.verdict, workers.said) == (
        Verdict.WARNING, "open batches wait for tiny; live workers serve nothing",
    )  # fmt: skip


def test_documents_that_wait_name_the_role_that_reads_them(
    settings: Settings, service: Service, batch_file: Path
) -> None:
    batch_id = service.run("batch", "create", batch_file).stdout.strip()
    service.validate(batch_id)
    with psycopg.connect(service.database) as connection:
        connection.execute("UPDATE batch SET model = ':prepare'")
    findings = found(settings.model_copy(update={"database_url": service.database}))
    assert "`tokenmill prepare`" in findings["documents"].advice
    assert findings["workers"].verdict is Verdict.OK, "documents are no model"


def test_the_command_ends_with_status_1_where_something_is_wrong(tmp_path: Path) -> None:
    nothing = {
        "TOKENMILL_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "TOKENMILL_REDIS_URL": "redis://127.0.0.1:1/0",
        "TOKENMILL_STORAGE_URL": (tmp_path / "objects").as_uri(),
        "XDG_DATA_HOME": str(tmp_path),
    }
    done = typed("doctor", variables=nothing)
    assert done.returncode == 1
    assert "database  problem  cannot reach Postgres" in done.stdout
    assert "it is not mounted, or the first start will create it" in done.stdout
    assert not (tmp_path / "objects").exists()
    assert done.stderr == ""
