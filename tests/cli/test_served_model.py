"""Tests of choosing a model: folder, Hugging Face id, demo model, and its served name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.disk.input_scan import InputScan
from cli.run_command import _served_model
from cli.served_model import ServedModel, choose_model, demo_model_folder
from jobs.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "Llama-tiny"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def scan(*models: str) -> InputScan:
    return InputScan(sha256="0", num_lines=1, models=models, endpoint="/v1/completions")


def test_a_folder_is_served_under_its_own_name_or_the_given_one(folder: Path) -> None:
    assert choose_model(str(folder)) == ServedModel(name="Llama-tiny", path=str(folder))
    assert choose_model(str(folder), name="x").name == "x"


def test_a_gguf_file_is_served_under_its_name_without_the_ending(tmp_path: Path) -> None:
    path = tmp_path / "Tiny-1B.Q4_1.gguf"
    path.touch()
    assert choose_model(str(path)) == ServedModel(name="Tiny-1B.Q4_1", path=str(path))
    with pytest.raises(InputError, match=rf"config\.json is missing\. Give the file: {path}"):
        choose_model(str(tmp_path))


def test_a_gguf_file_of_another_ending_is_told_what_its_name_lacks(tmp_path: Path) -> None:
    path = tmp_path / "sha256-0a1b"
    path.write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(InputError, match=r"is a GGUF file, but its name does not end in \.gguf"):
        choose_model(str(path))


@pytest.mark.parametrize("given", ["models/none.gguf", "none.gguf"])
def test_a_gguf_file_that_is_not_there_is_no_hub_id(given: str) -> None:
    with pytest.raises(InputError, match="there is no model at"):
        choose_model(given)


def test_a_hub_id_is_taken_as_it_is() -> None:
    assert choose_model("org/model-1.5") == ServedModel(name="org/model-1.5", path="org/model-1.5")


@pytest.mark.parametrize("revision", ["v1.0", "0123abc", "refs/pr/7"])
def test_a_hub_id_may_pin_its_revision_and_keeps_its_name(revision: str) -> None:
    pinned = f"org/model@{revision}"
    assert choose_model(pinned) == ServedModel(name="org/model", path=pinned)
    assert _served_model(pinned, scan("tiny")) == ServedModel(name="tiny", path=pinned)


@pytest.mark.parametrize("given", ["./models/tiny", "/models/tiny", "tiny", "a/b/c", "../x", "a/b@", "a@b"])
def test_a_path_that_does_not_exist_is_refused(given: str) -> None:
    with pytest.raises(InputError, match="there is no model at"):
        choose_model(given)


def test_the_demo_model_of_a_checkout_is_the_default() -> None:
    demo = demo_model_folder()
    assert demo is not None
    assert choose_model(None) == ServedModel(name="demo", path=str(demo))
    assert choose_model(str(demo)).name == "demo"


def test_without_a_checkout_a_model_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.served_model.demo_model_folder", lambda: None)
    with pytest.raises(InputError, match="no model was given"):
        choose_model(None)


def test_a_run_serves_the_given_model_under_the_name_in_the_file(folder: Path) -> None:
    assert _served_model(str(folder), scan("gpt-3.5-turbo")) == ServedModel(name="gpt-3.5-turbo", path=str(folder))
    assert _served_model(str(folder), scan()).name == "Llama-tiny"


def test_a_run_without_a_model_takes_the_name_in_the_file(folder: Path) -> None:
    assert _served_model(None, scan("demo")).path == str(demo_model_folder())
    assert _served_model(None, scan("org/model")).path == "org/model"
    assert _served_model(None, scan(str(folder))) == ServedModel(name=str(folder), path=str(folder))
