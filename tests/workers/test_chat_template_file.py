"""Tests of a worker with a chat template that replaces the model's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.errors import InputError
from workers.gpu_main import _tokenizer

DEMO_MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo_model"


def test_the_given_template_writes_the_prompts(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    chat = [{"role": "user", "content": "größer"}]
    assert _tokenizer(DEMO_MODEL, template).apply_chat_template(chat, tokenize=False) == "<größer>"
    assert _tokenizer(DEMO_MODEL, None).apply_chat_template(chat, tokenize=False) != "<größer>"


def test_a_template_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the chat template .*none\.jinja cannot be read"):
        _tokenizer(DEMO_MODEL, tmp_path / "none.jinja")
    (tmp_path / "bytes.jinja").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match=r"the chat template .*bytes\.jinja cannot be read"):
        _tokenizer(DEMO_MODEL, tmp_path / "bytes.jinja")
