"""Tests of a role's preparations before its work begins."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery.signals import worker_ready
from typer.testing import CliRunner

from cli import roles
from cli.app import app
from cli.data_dir import locked
from cli.embedded.note import StackNote, write_note
from cli.starting import checks, readiness
from jobs.errors import InputError, ServiceError
from jobs.settings import Settings
from tests.database_roles import as_owner, as_service, as_superuser


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _keeps_our_log(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("api.logs", "workers.logs"):
        monkeypatch.setattr(f"{module}.configure", lambda *_, **__: None)


def dispatch(ready_file: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    monkeypatch.setattr("workers.dispatcher.main", lambda _settings: look())
    roles.dispatch(ready_file=ready_file)


def control(ready_file: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    def main(_settings: Settings) -> None:
        worker_ready.send(sender=None)
        look()

    monkeypatch.setattr(worker_ready, "receivers", [])
    monkeypatch.setattr("workers.control.main", main)
    roles.control(ready_file=ready_file)


def api(ready_file: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    monkeypatch.setattr("cli.stack.require_free_port", lambda *_: None)
    monkeypatch.setattr("api.app.create_app", lambda _settings, **__: None)
    monkeypatch.setattr("api.server.serve", lambda *_, **__: look())
    roles.api(ready_file=ready_file)


@pytest.mark.parametrize("start", [dispatch, control, api])
def test_no_collection_walks_what_a_role_has_loaded(
    start: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "checked_settings", lambda *_, **__: Settings())
    found: list[tuple[bool, bool]] = []
    ready_file = tmp_path / "ready"
    start(ready_file, monkeypatch, lambda: found.append((ready_file.exists(), gc.get_freeze_count() > 1000)))
    assert found == [(True, True)]


def test_the_ready_file_of_a_killed_role_is_gone_before_the_next_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that restarts keeps its `/tmp`, and would be ready before its model is loaded."""
    ready_file, seen = tmp_path / "ready", list[bool]()
    ready_file.touch()

    def ask(*_: object, **__: object) -> Settings:
        seen.append(ready_file.exists())
        raise ServiceError("none")

    monkeypatch.setattr(roles, "checked_settings", ask)
    CliRunner().invoke(app, ["dispatch", "--ready-file", str(ready_file)])
    assert seen == [False]


@pytest.mark.parametrize(
    ("role", "modules"),
    [("dispatch", ["workers.dispatcher"]), ("control", ["workers.control"]), ("api", ["api.app", "api.server"])],
)
def test_a_role_of_a_stack_that_starts_is_loaded_before_it_waits_for_the_database(
    role: str, modules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_file, events = tmp_path / "start", list[str]()

    def wait(_: float) -> None:
        events.append("waited")
        start_file.touch()

    def ask(*_: object, **__: object) -> Settings:
        events.append("asked for the database")
        raise ServiceError("none")

    monkeypatch.setattr(readiness, "import_module", events.append)
    monkeypatch.setattr("time.sleep", wait)
    monkeypatch.setattr(roles, "checked_settings", ask)
    with pytest.raises(ServiceError):
        getattr(roles, role)(start_file=start_file)
    assert events == [*modules, "waited", "asked for the database"]


def test_a_role_works_for_the_stack_of_a_folder_whatever_is_exported(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {
        "TOKENMILL_DATABASE_URL": database_url,
        "TOKENMILL_REDIS_URL": "redis+socket:///own/valkey.sock",
        "TOKENMILL_STORAGE_URL": (tmp_path / "own").as_uri(),
    }
    for name in urls:
        monkeypatch.setenv(name, "postgresql://127.0.0.1:1/stale")
    started: list[Settings] = []
    monkeypatch.setattr("workers.dispatcher.main", started.append)
    with locked(tmp_path) as data_dir:
        write_note(data_dir, StackNote(pid=os.getpid(), started_at=0.0, base_url="", environment=urls, roles=[]))
        roles.dispatch(data_dir=tmp_path)
    assert (started[0].database_url, started[0].redis_url, started[0].storage_url) == tuple(urls.values())
    with pytest.raises(InputError, match="no `tokenmill up` runs on"):  # its record is there, as after a kill
        roles.dispatch(data_dir=tmp_path)


@pytest.mark.parametrize(("as_whom", "is_warned"), [(as_superuser, True), (as_owner, True), (as_service, False)])
def test_a_login_that_may_do_more_serves_and_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    database_url: str,
    tmp_path: Path,
    as_whom: Callable[[str], str],
    is_warned: bool,
) -> None:
    started: list[Settings] = []
    monkeypatch.setattr("workers.dispatcher.main", started.append)
    monkeypatch.setenv("TOKENMILL_DATABASE_URL", as_whom(database_url))
    monkeypatch.setenv("TOKENMILL_STORAGE_URL", (tmp_path / "objects").as_uri())
    roles.dispatch()
    assert len(started) == 1
    assert [record.levelname for record in caplog.records if record.name == "cli.starting.checks"] == [
        "WARNING"
    ] * is_warned


def test_a_prepare_worker_logs_in_as_its_own_role_where_it_has_one() -> None:
    given = Settings(database_url="postgresql://tokenmill_service@db/t")
    assert given.of_prepare().database_url == given.database_url
    own = given.model_copy(update={"database_prepare_url": "postgresql://tokenmill_prepare@db/t"})
    assert own.of_prepare().database_url == own.database_prepare_url


def test_a_missing_variable_is_named_with_the_default_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENMILL_DATABASE_URL", raising=False)
    monkeypatch.setattr(checks, "DATABASE_SECONDS", 0.0)
    with pytest.raises(ServiceError, match=r"_DATABASE_URL is not set, and its default postgresql.*Set it, or"):
        roles.dispatch()
