"""Tests of an encoder's identity: the bytes of the files that determine a vector."""

from __future__ import annotations

from pathlib import Path

from engine.pooling.identity import model_sha256, tokenizer_sha256


def test_a_model_is_another_one_when_a_file_that_decides_its_vectors_is(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    for name in ("model.safetensors", "tokenizer.json", "1_Pooling/config.json", "README.md"):
        (tmp_path / name).write_text(name)
    model, tokenizer = model_sha256(tmp_path), tokenizer_sha256(tmp_path)
    (tmp_path / "README.md").write_text("another")
    assert (model_sha256(tmp_path), tokenizer_sha256(tmp_path)) == (model, tokenizer)
    (tmp_path / "1_Pooling/config.json").write_text("another")
    assert model_sha256(tmp_path) != model
    assert tokenizer_sha256(tmp_path) == tokenizer
