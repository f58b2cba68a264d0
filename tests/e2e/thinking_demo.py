"""The demo model with marks of thoughts: two of its tokens have other names, and its template may open thoughts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

_DEMO_MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo_model"
_NAMES = {"<|pad|>": "<think>", "<|system|>": "</think>"}
"""Neither occurs in a conversation without a system message."""
_OPENING = "{{ '<|assistant|>' }}"


def make_thinking_demo(path: Path) -> Path:
    """Write the model; it thinks where `enable_thinking` is true, and writes what the demo model does elsewhere."""
    shutil.copytree(_DEMO_MODEL, path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / name).read_text()
        for old, new in _NAMES.items():
            text = text.replace(json.dumps(old), json.dumps(new))
        (path / name).write_text(text)
    template = (path / "chat_template.jinja").read_text()
    assert _OPENING in template
    opened = f"{_OPENING}{{% if enable_thinking %}}{{{{ '<think>' }}}}{{% endif %}}"
    (path / "chat_template.jinja").write_text(template.replace(_OPENING, opened))
    return path
