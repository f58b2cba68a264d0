"""Tests of chunks of adapters that our engine runs: claimed, sent, answered, or left to others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from engine.config import ModelImpl
from engine.models.adapters.files import CANNOT_BE_USED
from jobs import served_adapters, served_models
from jobs.chunks import claiming
from jobs.chunks.leasing import ClaimedChunk
from jobs.engines.engine import OWN_ENGINE
from tests.engine.models.lora import write_adapter
from tests.workers.chunks.builders import BILLED, DEMO_MODEL, RESULTS, Bench, FakeHost, MakeLine, SubmitLines
from workers.chunks.adapter_folders import AdapterFolders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", DEMO_MODEL, seed=1)


@pytest.fixture
def folders(maker: sessionmaker[Session]) -> AdapterFolders:
    return AdapterFolders(maker, model="demo", folder=DEMO_MODEL)


@pytest.fixture
def add(maker: sessionmaker[Session]) -> Callable[..., None]:
    def add(folder: Path | str, name: str = "slang", **more: Any) -> None:
        with maker.begin() as session:
            if "demo" not in [model.name for model in served_models.list_models(session)]:
                served_models.add_model(session, "demo", str(DEMO_MODEL), is_checked=True)
            served_adapters.add_adapter(session, name, base="demo", adapter=str(folder), **more)

    return add


def offered(maker: sessionmaker[Session]) -> list[str]:
    with maker() as session:
        return list(session.scalars(text("SELECT name FROM model WHERE checked_at IS NOT NULL AND base = 'demo'")))


def test_a_folder_is_noticed_when_it_comes_changes_and_goes(
    folders: AdapterFolders, add: Callable[..., None], folder: Path, maker: sessionmaker[Session]
) -> None:
    add(folder)
    away = folder.rename(folder.with_name("away"))
    seen = []
    for state in ("not there", "there", "of another kind", "there", "gone"):
        if state == "there":
            shutil.copytree(away, folder, dirs_exist_ok=True)
        elif state == "of another kind":
            (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
        elif state == "gone":
            shutil.rmtree(folder)
        folders.look()
        seen.append(folders.usable == {str(folder)})
    assert seen == [False, True, False, True, False]
    assert offered(maker) == ["slang"], "once offered it stays so: another worker may have it"
    assert folders.identity(str(folder)) != folders.identity(str(folder)), "of missing files nothing is the same"


def test_a_folder_that_the_engine_refused_is_usable_once_its_files_have_changed(
    folders: AdapterFolders, add: Callable[..., None], folder: Path
) -> None:
    add(folder)
    folders.look()
    folders.refuse(str(folder), "not finite")
    assert folders.usable == frozenset()
    folders.look()
    assert folders.usable == frozenset()
    write_adapter(folder, DEMO_MODEL, seed=2)
    folders.look()
    assert folders.usable == {str(folder)}


@pytest.mark.parametrize("config", ['{"peft_type": "LORA", "alpha_pattern": {"*": 8}}', "[" * 100_000, "[]", '"LORA"'])
def test_a_malformed_folder_costs_no_other(
    folders: AdapterFolders, add: Callable[..., None], folder: Path, tmp_path: Path, config: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "adapter_config.json").write_text(config)
    add(broken, "broken")
    add(folder)
    folders.look()
    assert folders.usable == {str(folder)}


def test_a_model_that_transformers_code_runs_has_no_usable_folders(
    maker: sessionmaker[Session], add: Callable[..., None], folder: Path
) -> None:
    add(folder)
    folders = AdapterFolders(maker, model="demo", folder=DEMO_MODEL, impl=ModelImpl.TRANSFORMERS)
    folders.look()
    assert folders.usable == frozenset()


def test_names_at_servers_are_no_folders(
    folders: AdapterFolders, add: Callable[..., None], maker: sessionmaker[Session]
) -> None:
    add("sql-lora", "sql")
    folders.look()
    assert folders.usable == frozenset()
    assert offered(maker) == []


@pytest.fixture
def claim_own(bench: Bench, folders: AdapterFolders) -> Callable[[], ClaimedChunk | None]:
    bench.change_parts(adapters=folders)

    def claim() -> ClaimedChunk | None:
        folders.look()
        engine = replace(OWN_ENGINE, adapters=folders.usable)
        with bench.maker.begin() as session:
            return claiming.claim_next(
                session, model="demo", worker_id="w", lease=bench.services.settings.lease, engine=engine
            )

    return claim


def test_lines_of_an_adapter_go_to_the_engine_with_its_folder_and_come_back_under_its_name(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    line: MakeLine,
    add: Callable[..., None],
    folder: Path,
    claim_own: Callable[[], ClaimedChunk | None],
) -> None:
    add(folder, is_readable=lambda base, adapter: True)
    submit_valid([line(number, model="slang") for number in range(2)])
    claim = claim_own()
    assert claim is not None
    host.instant = True
    bench.start(claim)
    bench.join()
    assert bench.rows(BILLED) == [(2, 4)]
    assert host.adapters == [str(folder)] * 2
    stored = [json.loads(output) for (output,) in bench.rows("SELECT line FROM result")]
    assert {answer["response"]["body"]["model"] for answer in stored} == {"slang"}


def test_lines_of_an_unreadable_adapter_are_not_claimed(
    submit_valid: SubmitLines,
    line: MakeLine,
    add: Callable[..., None],
    folder: Path,
    claim_own: Callable[[], ClaimedChunk | None],
) -> None:
    add(folder, is_readable=lambda base, adapter: True)
    submit_valid([line(0, model="slang")])
    (folder / "adapter_model.safetensors").unlink()
    assert claim_own() is None
    write_adapter(folder, DEMO_MODEL, seed=1)
    assert claim_own() is not None


def test_lines_whose_adapter_the_engine_could_not_use_are_left_to_others(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    line: MakeLine,
    add: Callable[..., None],
    folder: Path,
    folders: AdapterFolders,
    claim_own: Callable[[], ClaimedChunk | None],
) -> None:
    add(folder, is_readable=lambda base, adapter: True)
    submit_valid([line(0, model="slang")])
    claim = claim_own()
    assert claim is not None
    bench.start(claim)
    host.wait_for(1)
    host.answer(1, error=f"{CANNOT_BE_USED}{folder} has no files")
    bench.join()
    assert bench.rows(RESULTS) == []
    assert bench.rows("SELECT state FROM chunk") == [("ready",)]
    assert folders.usable == frozenset()


def test_a_line_that_fails_otherwise_fails(
    bench: Bench,
    host: FakeHost,
    submit_valid: SubmitLines,
    line: MakeLine,
    add: Callable[..., None],
    folder: Path,
    claim_own: Callable[[], ClaimedChunk | None],
) -> None:
    add(folder, is_readable=lambda base, adapter: True)
    submit_valid([line(0, model="slang")])
    claim = claim_own()
    assert claim is not None
    bench.start(claim)
    host.wait_for(1)
    host.answer(1, error="too long")
    bench.join()
    assert bench.rows(RESULTS) == [(0, None)]
