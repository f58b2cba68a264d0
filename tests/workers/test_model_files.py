from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.model_files import fingerprint_of

SECOND = 10**9


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "more/tokenizer.json"):
        (folder / name).write_bytes(b"12345")
        os.utime(folder / name, ns=(SECOND, SECOND))
    return folder


def test_untouched_files_keep_their_fingerprint(model: Path) -> None:
    before = fingerprint_of(model)
    (model / "more" / "tokenizer.json").read_bytes()
    assert fingerprint_of(model) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: os.utime(folder / "model.safetensors", ns=(SECOND, SECOND + 1)),
        lambda folder: (folder / "more" / "tokenizer.json").write_bytes(b"123456"),
        lambda folder: (folder / "config.json").rename(folder / "config2.json"),
        lambda folder: (folder / "adapter.json").write_bytes(b""),
    ],
)
def test_every_change_of_a_file_changes_the_fingerprint(model: Path, change: Callable[[Path], object]) -> None:
    before = fingerprint_of(model)
    change(model)
    assert fingerprint_of(model) != before


def test_a_copy_elsewhere_is_another_model(model: Path, tmp_path: Path) -> None:
    before = fingerprint_of(model)
    assert fingerprint_of(model.rename(tmp_path / "moved")) != before


@pytest.mark.parametrize("change", [lambda path: os.utime(path, ns=(1, SECOND)), lambda path: path.write_bytes(b"1")])
def test_a_changed_file_is_another_model(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"12345")
    before = fingerprint_of(path)
    assert fingerprint_of(path) == before
    change(path)
    assert fingerprint_of(path) != before


def test_a_template_in_place_of_the_models_own_makes_another_model(model: Path, tmp_path: Path) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages }}")
    with_template = fingerprint_of(model, template)
    assert with_template != fingerprint_of(model)
    template.write_text("{{ messages }} and more")
    assert fingerprint_of(model, template) != with_template
