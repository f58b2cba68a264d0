"""Read how a sentence-transformers directory turns a text's token rows into one vector."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.errors import InvalidConfigError, ModelLoadError, UnsupportedModelError
from engine.pooling.json_files import read_object
from engine.pooling.modules import NORMALIZE, POOLING, TRANSFORMER, read_modules

_POOLING_FLAG = "pooling_mode_"


class Pooling(StrEnum):
    """Which of a text's rows become its vector: the first, their mean, or the last."""

    CLS = "cls"
    MEAN = "mean"
    LAST_TOKEN = "last_token"


_POOLINGS = {
    "cls": Pooling.CLS,
    "cls_token": Pooling.CLS,
    "mean": Pooling.MEAN,
    "mean_tokens": Pooling.MEAN,
    "lasttoken": Pooling.LAST_TOKEN,
}
"""By sentence-transformers' names: in `pooling_mode`, and after `pooling_mode_` if each has a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a directory besides its encoder."""

    encoder_path: Path
    pooling: Pooling
    hidden_size: int | None
    """Required width of rows; None if the directory does not have it."""
    is_normalized: bool
    """Whether vectors have length 1."""
    is_lower_cased: bool
    """Whether texts are lower-cased before tokenization."""
    max_tokens: int | None
    """The longest text, including special tokens (`max_seq_length`); None if encoder and tokenizer decide."""


def read_recipe(path: Path, pooling: str | None) -> Recipe:
    """Read `modules.json` and the files it names. `pooling` is for a directory without it, whose vectors have length 1.

    Raises InvalidConfigError if `pooling` is wrong, ModelLoadError and UnsupportedModelError for the directory.
    """
    modules = read_modules(path)
    if modules is None:
        return _plain_recipe(path, pooling)
    if pooling is not None:
        raise InvalidConfigError(f"pooling is {pooling!r}, but {path / 'modules.json'} defines it; leave it out.")
    refuse_default_prompt(path)
    if list(modules) not in ([TRANSFORMER, POOLING], [TRANSFORMER, POOLING, NORMALIZE]):
        raise UnsupportedModelError(
            f"{path / 'modules.json'} has the modules {', '.join(modules) or 'none'}; run are Transformer, Pooling "
            "and, if it is there, Normalize, in this order."
        )
    encoder_path = path / modules[TRANSFORMER]
    settings = read_object(encoder_path / "sentence_bert_config.json")
    pooled = read_object(path / modules[POOLING] / "config.json")
    return Recipe(
        encoder_path=encoder_path,
        pooling=_pooling_of(pooled, path / modules[POOLING] / "config.json"),
        hidden_size=pooled.get("word_embedding_dimension", pooled.get("embedding_dimension")),
        is_normalized=NORMALIZE in modules,
        is_lower_cased=bool(settings.get("do_lower_case")),
        max_tokens=_max_tokens(settings, encoder_path),
    )


def _plain_recipe(path: Path, pooling: str | None) -> Recipe:
    allowed = ", ".join(Pooling)
    if pooling is None:
        raise InvalidConfigError(f"{path} has no modules.json with a pooling; set pooling to one of {allowed}.")
    if pooling not in list(Pooling):
        raise InvalidConfigError(f"pooling is {pooling!r}; use one of {allowed}.")
    return Recipe(
        encoder_path=path,
        pooling=Pooling(pooling),
        hidden_size=None,
        is_normalized=True,
        is_lower_cased=False,
        max_tokens=None,
    )


def _pooling_of(config: dict[str, Any], file: Path) -> Pooling:
    if not config:
        raise ModelLoadError(f"{file} is missing or empty; copy the whole model directory.")
    flagged = [name.removeprefix(_POOLING_FLAG) for name, on in config.items() if name.startswith(_POOLING_FLAG) and on]
    named = config.get("pooling_mode")
    modes = flagged if named is None else [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise UnsupportedModelError(
            f"{file} pools by {' and '.join(map(str, modes)) or 'nothing'}; supported are cls, mean and lasttoken."
        )
    return _POOLINGS[modes[0]]


def _max_tokens(settings: dict[str, Any], encoder_path: Path) -> int | None:
    limit = settings.get("max_seq_length")
    if limit is None or isinstance(limit, int):
        return limit
    raise ModelLoadError(
        f"{encoder_path / 'sentence_bert_config.json'}: max_seq_length is {limit!r}; it must be a whole number or null."
    )


def refuse_default_prompt(path: Path) -> None:
    """Raise UnsupportedModelError if a directory has a default prompt, written before every text."""
    name = read_object(path / "config_sentence_transformers.json").get("default_prompt_name")
    if name is not None:
        raise UnsupportedModelError(
            f"{path} has the default prompt {name!r} for every text (default_prompt_name of "
            "config_sentence_transformers.json); set that to null there and give texts with their prompts."
        )
