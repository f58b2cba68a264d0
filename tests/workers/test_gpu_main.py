"""How a GPU worker starts: its engine loads the model while the worker loads what it needs itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from jobs.errors import InputError, ServiceError
from jobs.settings import Settings
from workers import gpu_main, logs

calls: list[str] = []
SETTINGS = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")


class NotedEngine:
    """Stands for the engine process, and notes what is asked of it."""

    def __init__(self, config: EngineConfig) -> None:
        calls.append(f"made for {Path(config.model).name}")

    def begin(self) -> None:
        calls.append("begun")

    def close(self) -> None:
        calls.append("closed")


class AnyTokenizer:
    chat_template = None


@pytest.fixture(autouse=True)
def _noted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls.clear()
    monkeypatch.setattr(gpu_main, "EngineProcess", NotedEngine)
    monkeypatch.setattr(logs, "configure", lambda role: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_the_engine_loads_while_the_tokenizer_does_and_ends_where_that_fails(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def load(path: Path) -> Any:
        calls.append("tokenizer")

    monkeypatch.setattr(gpu_main, "load_tokenizer", load)
    with pytest.raises(InputError, match="has no tokenizer, so text cannot be served"):
        gpu_main.main(SETTINGS, model="m", path=str(folder), engine=lambda path: EngineConfig(model=path))
    assert calls == ["made for model", "begun", "tokenizer", "closed"]


def test_the_database_is_waited_for_last_and_the_engine_ends_where_it_does_not_come(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def load(path: Path) -> Any:
        calls.append("tokenizer")
        return AnyTokenizer()

    def wait() -> None:
        calls.append("database")
        raise ServiceError("cannot reach Postgres")

    monkeypatch.setattr(gpu_main, "load_tokenizer", load)
    with pytest.raises(ServiceError, match="cannot reach Postgres"):
        gpu_main.main(
            SETTINGS,
            model="m",
            path=str(folder),
            engine=lambda path: EngineConfig(model=path),
            before_database=wait,
        )
    assert calls == ["made for model", "begun", "tokenizer", "database", "closed"]


def test_the_database_is_waited_for_first_where_it_says_what_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait() -> None:
        raise ServiceError("cannot reach Postgres")

    with pytest.raises(ServiceError, match="cannot reach Postgres"):
        gpu_main.main(
            SETTINGS, model="m", path=None, engine=lambda path: EngineConfig(model=path), before_database=wait
        )
    assert calls == []
