"""Tests of workers as processes whose model breaks: for some lines, once or permanently, or for all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import fleet
from jobs.storage import Storage
from tests.workers.role_processes import ROOT, RoleProcess, Watch, ended, hasty_settings, stored_in

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_processes")]

DEMO_MODEL = ROOT / "examples" / "demo_model"
NO_BROKER = "redis://127.0.0.1:1/0"
ONCE, TWICE = 67, 99
"""Tokens of the demo model that are used only here."""
ENDS = "SELECT count(*) FROM result"


def save_breaking(path: Path, token_ids: Iterable[int]) -> None:
    """Replace the file by the demo model with weights that break on these tokens.

    Processes that read the old file still have it.
    """
    if not path.exists():
        shutil.copytree(DEMO_MODEL, path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    weights = load_file(DEMO_MODEL / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"]
    weights["lm_head.weight"] = embedding.clone()
    embedding[list(token_ids)] = torch.nan
    save_file(weights, path / "new", metadata={"format": "pt"})
    os.replace(path / "new", path / "model.safetensors")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return stored_in(tmp_path / "objects")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model"


@pytest.fixture
def watch(maker: sessionmaker[Session], tmp_path: Path) -> Watch:
    return Watch(maker, tmp_path / "worker.log")


@pytest.fixture
def start_worker(
    database_url: str, storage: Storage, model: Path, tmp_path: Path, watch: Watch
) -> Iterator[Callable[[], RoleProcess]]:
    started: list[RoleProcess] = []

    def start() -> RoleProcess:
        settings = hasty_settings(database_url, NO_BROKER, storage)
        arguments = ("worker", "--model", "demo", "--path", str(model))
        started.append(RoleProcess(*arguments, settings=settings, log=tmp_path / "worker.log"))
        watch.until("SELECT count(*) = 1 FROM worker WHERE stopped_at IS NULL")
        return started[-1]

    with ended(started):
        yield start


@pytest.fixture
def submit_prompts(submit_valid: Callable[..., str]) -> Callable[[list[list[int]]], str]:
    def submit(prompts: list[list[int]]) -> str:
        lines = [
            {
                "custom_id": f"c{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": "demo", "prompt": prompt, "max_tokens": 4, "ignore_eos": True},
            }
            for number, prompt in enumerate(prompts)
        ]
        return submit_valid(lines, endpoint="/v1/completions")

    return submit


def test_a_line_that_breaks_once_is_answered_by_a_new_engine_and_one_that_breaks_twice_is_an_error(
    start_worker: Callable[[], RoleProcess], submit_prompts: Callable[..., str], watch: Watch, model: Path, maker: Any
) -> None:
    save_breaking(model, (ONCE, TWICE))
    worker = start_worker()
    save_breaking(model, (TWICE,))  # for the next engine
    submit_prompts([[70, 71], [70, ONCE], [70, TWICE, 71], [72]])
    watch.until(f"{ENDS} HAVING count(*) = 4")
    with maker() as session:
        rows = session.execute(text("SELECT status_code, output_tokens, line FROM result ORDER BY line_no")).all()
    assert [row.status_code for row in rows] == [200, 200, None, 200]
    assert [row.output_tokens for row in rows] == [4, 4, 0, 4]
    assert orjson.loads(rows[2].line)["error"]["code"] == "engine_failure"
    assert watch.value("SELECT sum(output_tokens) FROM ledger") == 12
    assert worker.stop() == 0


def test_a_worker_that_breaks_for_every_line_is_out_until_it_is_resumed_and_costs_no_line(
    start_worker: Callable[[], RoleProcess], submit_prompts: Callable[..., str], watch: Watch, model: Path, maker: Any
) -> None:
    save_breaking(model, range(1024))
    worker = start_worker()
    save_breaking(model, ())
    submit_prompts([[number] for number in range(70, 90)])
    watch.until("SELECT draining_at IS NOT NULL AND engine_stats ->> 'out_reason' LIKE '% 8 lines %' FROM worker")
    watch.until("SELECT bool_and(state = 'ready') FROM chunk")
    assert watch.value(ENDS) == 0
    assert watch.value("SELECT count(*) BETWEEN 8 AND 20 AND bool_and(token_ids = '{}') FROM checkpoint")
    with maker.begin() as session:
        (out,) = fleet.live_workers(session)
        assert fleet.live_models(session) == []
        fleet.set_draining(session, out, is_draining=False)
    watch.until(f"{ENDS} WHERE status_code = 200 HAVING count(*) = 20")
    assert watch.value("SELECT max(losses) FROM chunk") == 0
    assert worker.stop() == 0
