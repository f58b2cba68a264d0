"""Load the tokenizer that lies beside a model's weights, or with them. Knows nothing of what the text is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.gguf.container import GgufFile, is_gguf


def load_tokenizer(path: Path) -> Any:
    """Load the tokenizer of a model's directory or GGUF file, None when it has none; its own code is never run.

    Raises ModelLoadError when it is broken or needs such code.
    """
    if is_gguf(path):
        return _from_gguf(path)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        return None
    from transformers import AutoTokenizer  # noqa: PLC0415 - a slow import that token ids do not need

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"The tokenizer in {path} cannot be loaded: {reason}.") from error


def _from_gguf(path: Path) -> Any:
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - as above

    from engine.gguf.tokenizer import read_tokenizer  # noqa: PLC0415 - as above

    found = read_tokenizer(GgufFile(path))
    if found is None:
        return None
    return PreTrainedTokenizerFast(
        tokenizer_object=found.backend,
        chat_template=found.chat_template,
        clean_up_tokenization_spaces=False,
        **found.named_tokens,
    )
