"""Tell what a folder's model is for, other than generating, by its JSON files. Loads neither torch nor weights."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from engine.pooling import modern_config
from engine.pooling.json_files import read_object
from engine.pooling.modules import LOGIT_SCORE, POOLING, read_modules

ENCODERS = ("bert", "roberta", "xlm-roberta", modern_config.MODEL_TYPE)
"""The types of models whose tokens see those before and after them."""

_SCORING_ARCHITECTURE = "ForSequenceClassification"


class Purpose(StrEnum):
    """What a model makes of texts."""

    EMBED = "embed"  # a vector of each
    RERANK = "rerank"  # a score of each pair of a query and a document


def purpose_of(path: Path) -> Purpose | None:
    """Return what a folder's model is for, None where it generates, as in every GGUF file. Raises ModelLoadError."""
    said = read_object(path / "config.json")
    modules = read_modules(path) or {}
    if LOGIT_SCORE in modules or any(name.endswith(_SCORING_ARCHITECTURE) for name in said.get("architectures") or ()):
        return Purpose.RERANK
    if POOLING in modules or (said.get("model_type") in ENCODERS and not said.get("is_decoder")):
        return Purpose.EMBED
    return None
