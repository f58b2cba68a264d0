"""Tell from a directory's JSON files what its model is for, other than generating. Loads no torch and no weights."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from engine.pooling.encoders import modern_config
from engine.pooling.json_files import read_object
from engine.pooling.modules import LOGIT_SCORE, POOLING, read_modules

ENCODERS = ("bert", "roberta", "xlm-roberta", modern_config.MODEL_TYPE)
"""Model types whose tokens see those before and after them."""

_SCORING_ARCHITECTURE = "ForSequenceClassification"


class Purpose(StrEnum):
    """A model's kind of result for texts."""

    EMBED = "embed"  # a vector for each
    RERANK = "rerank"  # a score for each pair of a query and a document


def purpose_of(path: Path) -> Purpose | None:
    """Return the purpose of a directory's model, None if it generates, like every GGUF file. Raises ModelLoadError."""
    raw = read_object(path / "config.json")
    modules = read_modules(path) or {}
    if LOGIT_SCORE in modules or any(name.endswith(_SCORING_ARCHITECTURE) for name in raw.get("architectures") or ()):
        return Purpose.RERANK
    if POOLING in modules or (raw.get("model_type") in ENCODERS and not raw.get("is_decoder")):
        return Purpose.EMBED
    return None
