"""Tests of the options of engines of others: what fits together, and what a stack's worker is started with."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import roles, up_command
from cli.models.model_server import EngineKind, ModelServer
from cli.models.spill import SpillOptions
from cli.served_model import ServedModel
from cli.stack import StackOptions, _worker_arguments
from jobs.errors import InputError
from jobs.settings import Settings
from workers.remote.dialects import LLAMA_SERVER, OTHER
from workers.remote.identity import Identity
from workers.remote.keys import address_of
from workers.remote.main import RemoteOptions, _context

URL = "http://127.0.0.1:1/v1"


@pytest.fixture(autouse=True)
def _keeps_our_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.logs.configure", lambda *_, **__: None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "m", "url": URL}, "--engine openai"),
        ({"model": "m", "key_file": Path("k")}, "--engine openai"),
        ({}, "--model"),
        ({"engine": EngineKind.OPENAI}, "--url"),
        ({"engine": EngineKind.OPENAI, "url": URL, "device": "cuda"}, "--path"),
        ({"engine": EngineKind.OPENAI, "url": URL, "path": "p"}, "--path"),
        ({"engine": EngineKind.OPENAI, "url": URL, "chat_template": Path("t")}, "--chat-template"),
    ],
)
def test_options_of_one_engine_are_refused_for_the_other(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        roles.worker(**options)


def test_a_stack_s_options_of_a_server_need_its_engine() -> None:
    none = {"key_file": None, "tokenizer": None, "max_model_len": None}
    with pytest.raises(InputError, match="--engine openai"):
        up_command._server_of(EngineKind.OWN, url=URL, **none)
    with pytest.raises(InputError, match="--url"):
        up_command._server_of(EngineKind.OPENAI, url=None, **none)
    assert up_command._server_of(EngineKind.OPENAI, url=URL, **none) == ModelServer(url=URL)


def test_a_stack_starts_its_worker_with_the_server_and_never_with_the_key(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sk-secret")
    server = ModelServer(url=URL, key_file=key_file, max_model_len=512)
    model = up_command._served_by(server, "org/theirs", "ours")
    assert model == ServedModel(name="ours", path=URL, name_at_server="org/theirs")
    arguments = _worker_arguments(StackOptions(data_dir=tmp_path, model=model, port=1, server=server))
    assert arguments[:6] == ("--model", "ours", "--engine", "openai", "--url", URL)
    assert arguments[6:] == ("--server-model", "org/theirs", "--key-file", str(key_file), "--max-model-len", "512")


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"two\nlines", b"\xc3\xa9", b"a\x00b"])
def test_a_file_that_holds_no_key_is_refused_without_being_shown(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InputError) as error:
        address_of(URL, tmp_path / "key")
    assert "lines" not in str(error.value)


def test_a_key_is_read_without_its_line_end_and_not_represented(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-secret\n")
    address = address_of(URL, tmp_path / "key")
    assert address.key == "sk-secret"
    assert "secret" not in repr(address)
    with pytest.raises(InputError, match="cannot be read"):
        address_of(URL, tmp_path / "none")


def test_the_context_is_the_server_s_or_a_smaller_one() -> None:
    told = Identity(dialect=LLAMA_SERVER, version=None, model="m", max_model_len=100)
    assert _context(told, RemoteOptions(url=URL)) == 100
    assert _context(told, RemoteOptions(url=URL, max_model_len=50)) == 50
    with pytest.raises(InputError, match="100"):
        _context(told, RemoteOptions(url=URL, max_model_len=101))
    untold = Identity(dialect=OTHER, version=None, model="m")
    assert _context(untold, RemoteOptions(url=URL, max_model_len=50)) == 50
    with pytest.raises(InputError, match="--max-model-len"):
        _context(untold, RemoteOptions(url=URL))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The mains that a worker has called, by module, with what they got."""
    calls: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(roles, "settings_of", lambda _: Settings())
    monkeypatch.setattr(roles, "check", lambda _: None)
    monkeypatch.setattr("celery.signals.worker_ready.receivers", [])
    for module in ("workers.gpu_main", "workers.remote.main"):
        monkeypatch.setattr(f"{module}.main", lambda _, name=module, **given: calls.append((name, given)))
    yield calls
    gc.unfreeze()


def test_a_worker_runs_our_engine_unless_another_is_named(started: list[tuple[str, dict[str, Any]]]) -> None:
    roles.worker(model="m", path="p", device="cpu", max_model_len=64)
    ((module, given),) = started
    assert (module, given["model"], given["path"]) == ("workers.gpu_main", "m", "p")
    assert (given["engine"]("folder").model, given["engine"]("folder").max_model_len) == ("folder", 64)


def test_a_dtype_of_encoders_reaches_the_worker_that_knows_its_model(started: list[tuple[str, dict[str, Any]]]) -> None:
    roles.worker(model="m", path="p", dtype="int8")
    ((module, given),) = started
    assert (module, given["dtype"], given["engine"]("folder").dtype) == ("workers.gpu_main", "int8", "auto")


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_worker_of_a_server_takes_no_dtype(started: list[tuple[str, dict[str, Any]]], dtype: str) -> None:
    with pytest.raises(InputError, match="--engine openai"):
        roles.worker(engine=EngineKind.OPENAI, url=URL, dtype=dtype)
    assert started == []


def test_a_worker_of_a_server_gets_its_options(started: list[tuple[str, dict[str, Any]]], tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    roles.worker(engine=EngineKind.OPENAI, url=URL, key_file=key_file, max_concurrency=3, max_model_len=64)
    ((module, given),) = started
    assert (module, given["model"]) == ("workers.remote.main", None)
    assert given["options"] == RemoteOptions(url=URL, key_file=key_file, max_seats=3, max_model_len=64)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"spill": True}, "--spill-budget"),
        ({"spill": True, "spill_budget": "5", "input_price": "1"}, "--output-price"),
        ({"spill_budget": "5"}, "--spill"),
        ({"spill": True, "spill_budget": "-5", "input_price": "1", "output_price": "1"}, "'-5'"),
        ({"spill": True, "spill_budget": "5", "input_price": "much", "output_price": "1"}, "'much'"),
    ],
)
def test_terms_of_a_server_outside_the_house_are_whole_or_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        SpillOptions(**options).terms()


def test_a_stack_s_worker_outside_the_house_has_the_same_terms() -> None:
    options = SpillOptions(spill=True, spill_budget="0.5", input_price="0.15", output_price="2")
    terms = options.terms()
    assert terms is not None
    assert terms.budget_picos == 5 * 10**11
    assert (terms.prices.input_picos, terms.prices.output_picos) == (150_000, 2_000_000)
    arguments = ModelServer(url=URL, spill=options).arguments(None)
    assert arguments[-7:] == ("--spill", "--spill-budget", "0.5", "--input-price", "0.15", "--output-price", "2")
    assert "--spill" not in ModelServer(url=URL).arguments(None)
