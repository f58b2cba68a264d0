"""A tiny model with a tokenizer and a chat template, for tests of `LLM`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.engine.texts import byte_level
from tests.engine.tiny_models import TinyModel

SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 200, "warm_up": False}
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"


def make_worded(model: TinyModel, path: Path) -> TinyModel:
    """Copy a model to a folder, with a tokenizer of one token per byte."""
    shutil.copytree(model.path, path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="!", eos_token='"')
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return TinyModel(path, model.prompts, model.max_tokens, model.expected)
