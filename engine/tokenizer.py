"""Load the tokenizer that lies beside a model's weights. Knows nothing of what the text is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer of a model's directory, None when it has none; code that comes with it is never run.

    Raises ModelLoadError when it is broken or needs such code.
    """
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    from transformers import AutoTokenizer  # noqa: PLC0415 - a slow import that token ids do not need

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"The tokenizer in {path} cannot be loaded: {reason}.") from error
