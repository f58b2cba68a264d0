"""What a role does before its work begins."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery.signals import worker_ready

from cli import roles
from jobs.settings import Settings


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


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
    monkeypatch.setattr("api.app.create_app", lambda _settings: None)
    monkeypatch.setattr("api.logs.configure", lambda: None)
    monkeypatch.setattr("api.server.serve", lambda *_, **__: look())
    roles.api(ready_file=ready_file)


@pytest.mark.parametrize("start", [dispatch, control, api])
def test_no_collection_walks_what_a_role_has_loaded(
    start: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "_checked_settings", lambda **_: Settings())
    found: list[tuple[bool, bool]] = []
    ready_file = tmp_path / "ready"
    start(ready_file, monkeypatch, lambda: found.append((ready_file.exists(), gc.get_freeze_count() > 1000)))
    assert found == [(True, True)]
