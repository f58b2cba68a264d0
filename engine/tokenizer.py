"""Load the tokenizer from a model's directory or GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.gguf.container import GgufFile, is_gguf

_PLAIN_CLASSES = frozenset({"TokenizersBackend", "PreTrainedTokenizerFast"})
"""The class names of transformers 5 and 4 for a tokenizer that consists only of its tokenizer.json."""

_PLAIN_MODELS = frozenset({"llama", "qwen3"})
"""Model types for which AutoTokenizer trusts the files; for some others (qwen2, phi3) it overrides them."""


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer of a model's directory or GGUF file, None if it has none; its own code is never run.

    Raises ModelLoadError if it is broken or needs such code.
    """
    if is_gguf(path):
        return _from_gguf(path)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    try:
        return _load(path)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"The tokenizer in {path} cannot be loaded: {reason}.") from error


def _load(path: Path) -> Any:
    """Load it like AutoTokenizer, which imports torch and its compilers: 7 s of CPU that a plain one does not need."""
    if is_plain(path):
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - a slow import that token ids do not need

        return PreTrainedTokenizerFast.from_pretrained(path)
    from transformers import AutoTokenizer  # noqa: PLC0415 - a slower one

    return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def is_plain(path: Path) -> bool:
    """Tell whether AutoTokenizer would read tokenizer.json with its plain class; False if that is uncertain."""
    if not (path / "tokenizer.json").is_file() or (path / "tekken.json").exists():
        return False
    tokenizer, model = (_read_object(path / name) for name in ("tokenizer_config.json", "config.json"))
    return (
        tokenizer.get("tokenizer_class") in _PLAIN_CLASSES
        and "auto_map" not in tokenizer
        and model.get("model_type") in _PLAIN_MODELS
        and not {"auto_map", "model_name"} & model.keys()
    )


def _read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, an empty one if it is unreadable: AutoTokenizer then reports the problem."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _from_gguf(path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - as above

    from engine.gguf.tokenizer import read_tokenizer  # noqa: PLC0415 - as above

    tokenizer = read_tokenizer(GgufFile(path))
    if tokenizer is None:
        return None
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        chat_template=tokenizer.chat_template,
        clean_up_tokenization_spaces=False,
        **tokenizer.named_tokens,
    )
