"""Tell the folder of an encoder from a decoder's by its config.json. Loads neither torch nor weights."""

from __future__ import annotations

from pathlib import Path

from engine.pooling import modern_config
from engine.pooling.json_files import read_object

MODEL_TYPES = ("bert", "roberta", "xlm-roberta", modern_config.MODEL_TYPE)


def is_encoder(path: Path) -> bool:
    """Tell whether a folder's model sees whole texts at once; a GGUF file has a decoder. Raises ModelLoadError."""
    said = read_object(path / "config.json")
    return said.get("model_type") in MODEL_TYPES and not said.get("is_decoder")
