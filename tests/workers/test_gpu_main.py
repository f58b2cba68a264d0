"""Tests of the start of a GPU worker: its engine loads the model while the worker loads its own parts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from celery.signals import worker_shutting_down

from engine.config import EngineConfig
from jobs.errors import InputError, ServiceError
from jobs.settings import Settings
from workers import gpu_main, logs, pool

calls: list[str] = []
SETTINGS = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")


class NotedEngine:
    """Replaces the engine process, and records its calls."""

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


@pytest.mark.parametrize(
    ("options", "chat_template", "message"),
    [
        ({"max_num_seqs": 4}, None, "embeds, on the CPU without an engine"),
        ({"device": "cuda"}, None, "embeds, on the CPU without an engine"),
        ({}, Path("chat.jinja"), "embeds and has no chats. Leave --chat-template out"),
        ({"device": "cpu"}, None, "has no modules.json, which defines how its encoder"),
    ],
)
def test_what_an_encoder_has_no_use_for_is_refused_before_anything_is_known(
    folder: Path, options: dict[str, Any], chat_template: Path | None, message: str
) -> None:
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=message):
        gpu_main.main(
            SETTINGS,
            model="m",
            path=str(folder),
            engine=lambda path: EngineConfig(model=path, **options),
            chat_template=chat_template,
        )
    assert calls == []


def test_a_dtype_of_encoders_is_refused_for_a_model_that_generates(folder: Path) -> None:
    with pytest.raises(InputError, match="'int8'"):
        gpu_main.main(SETTINGS, model="m", path=str(folder), engine=lambda path: EngineConfig(model=path), dtype="int8")
    assert calls == []


def test_a_worker_drains_when_it_is_told_to_end_and_not_when_its_broker_lets_it() -> None:
    begun = threading.Event()
    pool.drain_when_told(begun.set)
    assert not begun.is_set()
    worker_shutting_down.send(sender="worker@here", sig="SIGTERM", how="Warm", exitcode=0)
    assert begun.wait(20)
