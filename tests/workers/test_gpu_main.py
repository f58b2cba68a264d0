"""How a GPU worker starts: its engine loads the model while the worker loads what it needs itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from jobs.errors import InputError
from jobs.settings import Settings
from workers import gpu_main, logs

calls: list[str] = []


class NotedEngine:
    """Stands for the engine process, and notes what is asked of it."""

    def __init__(self, config: EngineConfig) -> None:
        calls.append(f"made for {Path(config.model).name}")

    def begin(self) -> None:
        calls.append("begun")

    def close(self) -> None:
        calls.append("closed")


def test_the_engine_loads_while_the_tokenizer_does_and_ends_where_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def load(path: Path) -> Any:
        calls.append("tokenizer")

    calls.clear()
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(gpu_main, "EngineProcess", NotedEngine)
    monkeypatch.setattr(gpu_main, "load_tokenizer", load)
    monkeypatch.setattr(logs, "configure", lambda role: None)
    settings = Settings(database_url="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(InputError, match="has no tokenizer, so text cannot be served"):
        gpu_main.main(settings, model="m", path=str(folder), engine=lambda path: EngineConfig(model=path))
    assert calls == ["made for model", "begun", "tokenizer", "closed"]
