"""What is loaded beside a model's weights, and what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engine.errors import ModelLoadError
from engine.tokenizer import load_tokenizer

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
