"""Tests of the files that are loaded besides a model's weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from engine.errors import ModelLoadError
from engine.tokenizer import is_plain, load_tokenizer

DEMO_MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo_model"
CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast

Path({marker!r}).touch()

class Strange(PreTrainedTokenizerFast):
    pass
"""


def test_a_tokenizers_own_code_is_not_run_whoever_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "ran"
    shutil.copy(DEMO_MODEL / "tokenizer.json", tmp_path)
    (tmp_path / "strange.py").write_text(CODE.format(marker=str(marker)))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "strange"}))
    settings = {"tokenizer_class": "Strange", "auto_map": {"AutoTokenizer": ["strange.Strange", "strange.Strange"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        load_tokenizer(tmp_path)
    assert not marker.exists()


def folder_of(path: Path, *, model_type: str, tokenizer: dict[str, object]) -> Path:
    """Copy the demo model's tokenizer as that of another model, with settings changed."""
    for name in ("tokenizer.json", "chat_template.jinja"):
        shutil.copy(DEMO_MODEL / name, path)
    settings = json.loads((DEMO_MODEL / "tokenizer_config.json").read_text()) | tokenizer
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    return path


@pytest.mark.parametrize("tokenizer_class", ["TokenizersBackend", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_a_tokenizer_is_the_one_that_transformers_chooses(
    tmp_path: Path, model_type: str, tokenizer_class: str
) -> None:
    folder = folder_of(tmp_path, model_type=model_type, tokenizer={"tokenizer_class": tokenizer_class})
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert is_plain(folder)
    assert type(ours) is type(theirs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.chat_template == theirs.chat_template
    differing = {name for name in ours.init_kwargs | theirs.init_kwargs if name != "_commit_hash"
                 and ours.init_kwargs.get(name) != theirs.init_kwargs.get(name)}  # fmt: skip
    assert differing == set()


@pytest.mark.parametrize(
    ("model_type", "tokenizer"),
    [
        ("llama", {"tokenizer_class": None}),
        ("llama", {"tokenizer_class": "LlamaTokenizerFast"}),
        ("llama", {"auto_map": {"AutoTokenizer": ["own.Strange", "own.Strange"]}}),
        ("qwen2", {}),
    ],
)
def test_a_tokenizer_that_is_not_surely_plain_is_left_to_transformers(
    tmp_path: Path, model_type: str, tokenizer: dict[str, object]
) -> None:
    assert is_plain(folder_of(tmp_path, model_type="llama", tokenizer={}))
    assert not is_plain(folder_of(tmp_path, model_type=model_type, tokenizer=tokenizer))
