"""Read how a sentence-transformers folder makes one vector of a text's token rows. Knows neither weights nor tokens."""

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
    """Which of a text's rows its vector is: the first, their mean, or the last."""

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
"""By sentence-transformers' names: in `pooling_mode`, and after `pooling_mode_` where each has a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a folder says besides its encoder."""

    encoder_path: Path
    pooling: Pooling
    hidden_size: int | None
    """How wide rows must be; None where the folder does not say."""
    is_normalized: bool
    """Whether vectors are of length 1."""
    is_lower_cased: bool
    """Whether texts are lower-cased before the tokenizer sees them."""
    max_tokens: int | None
    """The longest text, special tokens too (`max_seq_length`); None where encoder and tokenizer decide."""


def read_recipe(path: Path, pooling: str | None) -> Recipe:
    """Read `modules.json` and what it names. `pooling` is for a folder without it, whose vectors have length 1.

    Raises InvalidConfigError where `pooling` is wrong, ModelLoadError and UnsupportedModelError for the folder.
    """
    modules = read_modules(path)
    if modules is None:
        return _plain_recipe(path, pooling)
    if pooling is not None:
        raise InvalidConfigError(f"pooling is {pooling!r}, and {path / 'modules.json'} says its own; leave it out.")
    refuse_default_prompt(path)
    if list(modules) not in ([TRANSFORMER, POOLING], [TRANSFORMER, POOLING, NORMALIZE]):
        raise UnsupportedModelError(
            f"{path / 'modules.json'} has the modules {', '.join(modules) or 'none'}; run are Transformer, Pooling "
            "and, if it is there, Normalize, in this order."
        )
    encoder_path = path / modules[TRANSFORMER]
    said = read_object(encoder_path / "sentence_bert_config.json")
    pooled = read_object(path / modules[POOLING] / "config.json")
    return Recipe(
        encoder_path=encoder_path,
        pooling=_pooling_of(pooled, path / modules[POOLING] / "config.json"),
        hidden_size=pooled.get("word_embedding_dimension", pooled.get("embedding_dimension")),
        is_normalized=NORMALIZE in modules,
        is_lower_cased=bool(said.get("do_lower_case")),
        max_tokens=_max_tokens(said, encoder_path),
    )


def _plain_recipe(path: Path, pooling: str | None) -> Recipe:
    allowed = ", ".join(Pooling)
    if pooling is None:
        raise InvalidConfigError(f"{path} has no modules.json to say how to pool; give pooling as one of {allowed}.")
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


def _pooling_of(said: dict[str, Any], file: Path) -> Pooling:
    if not said:
        raise ModelLoadError(f"{file} is missing or empty; copy the whole model directory.")
    flagged = [name.removeprefix(_POOLING_FLAG) for name, on in said.items() if name.startswith(_POOLING_FLAG) and on]
    named = said.get("pooling_mode")
    modes = flagged if named is None else [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise UnsupportedModelError(
            f"{file} pools by {' and '.join(map(str, modes)) or 'nothing'}; one of cls, mean and lasttoken is computed."
        )
    return _POOLINGS[modes[0]]


def _max_tokens(said: dict[str, Any], encoder_path: Path) -> int | None:
    found = said.get("max_seq_length")
    if found is None or isinstance(found, int):
        return found
    raise ModelLoadError(
        f"{encoder_path / 'sentence_bert_config.json'}: max_seq_length is {found!r}; it must be a whole number or null."
    )


def refuse_default_prompt(path: Path) -> None:
    """Raise UnsupportedModelError where a folder has a prompt that is written before texts unasked."""
    name = read_object(path / "config_sentence_transformers.json").get("default_prompt_name")
    if name is not None:
        raise UnsupportedModelError(
            f"{path} writes its prompt {name!r} before every text (default_prompt_name of "
            "config_sentence_transformers.json); set that to null there and give texts with their prompts."
        )
