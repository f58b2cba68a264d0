"""Read a model's description from its files: config.json, a GGUF file's metadata, generation_config.json.

transformers reads a config.json that is not plain (it knows every old spelling).
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.gguf.container import GgufFile, is_gguf
from engine.models.language_part import LANGUAGE_PARTS, language_name, language_part

log = logging.getLogger(__name__)

_MOST = {"num_hidden_layers": 2**14, "num_attention_heads": 2**14, "hidden_size": 2**20, "vocab_size": 2**24}
"""Far above any model; larger numbers would allocate memory before weights are read."""
_USUAL_DTYPES = {"bfloat16", "float16", "float32"}


def read_raw(path: Path) -> dict[str, Any]:
    """Return the model's config.json, or its equivalent for a GGUF file. Raises ModelLoadError."""
    if is_gguf(path):
        from engine.gguf.config import read_config  # noqa: PLC0415 - imports torch, as _is_dtype may

        return read_config(GgufFile(path))
    try:
        raw = json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path / 'config.json'} cannot be read as JSON: {error}.") from error
    return raw if isinstance(raw, dict) else {}


def text_parts(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts that may describe the text weights."""
    text = raw.get("text_config")
    return [raw, text] if isinstance(text, dict) else [raw]


def check_sizes(raw: dict[str, Any], path: Path) -> None:
    """Raise ModelLoadError for integers out of the range of sizes; other values are refused where they are read."""
    for part in text_parts(raw):
        for name, most in _MOST.items():
            size = part.get(name)
            if type(size) is int and not 1 <= size <= most:
                raise ModelLoadError(f"{_config_file(path)} has {name} {size}; it must be from 1 to {most}.")


def check_dtype(raw: dict[str, Any], path: Path) -> None:
    """Raise ModelLoadError for a dtype that transformers would not find in torch."""
    for part in text_parts(raw):
        for name in ("dtype", "torch_dtype"):
            dtype = part.get(name)
            if isinstance(dtype, str) and not _is_dtype(dtype):
                raise ModelLoadError(
                    f"{path / 'config.json'} has {name} {dtype!r}; it must be the name of a dtype that torch has, such "
                    "as bfloat16, or be left out."
                )


def _is_dtype(name: str) -> bool:
    if name in _USUAL_DTYPES:
        return True
    import torch  # noqa: PLC0415 - takes 1 s; a process that only reads a model's description does not need it

    return isinstance(getattr(torch, name, None), torch.dtype)


def _config_file(path: Path) -> Path:
    return path if is_gguf(path) else path / "config.json"


def read_with_transformers(raw: dict[str, Any], path: Path) -> Any:
    """Return transformers' configuration of the model as it is loaded, without quantization.

    Raises UnsupportedModelError for a model_type that it has no causal language model for, or ModelLoadError.
    """
    model_type = raw.get("model_type")
    if model_type not in causal_models() and model_type not in LANGUAGE_PARTS:
        raise UnsupportedModelError(
            f"{path} has model_type {model_type!r}, for which the installed transformers has no causal language model; "
            "code that comes with a model is not run. docs/models.md lists the tested models."
        )
    from huggingface_hub.errors import StrictDataclassError  # noqa: PLC0415 - as below
    from transformers import AutoConfig  # noqa: PLC0415 - a slow import; the checks above do not need it

    try:
        if is_gguf(path):
            config = AutoConfig.for_model(**raw)
        else:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (ValueError, TypeError, KeyError, OSError, AttributeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"{_config_file(path)} is not a valid {model_type} configuration: {reason}.") from error
    for part in (config, config.get_text_config(decoder=True)):
        vars(part).pop("quantization_config", None)
    if model_type not in LANGUAGE_PARTS:
        return config
    return language_part(config, causal_models(), has_head=_has_head(path))


def _has_head(path: Path) -> bool:
    """Tell whether a model's files, if it has any, hold an output matrix."""
    from engine.models.weights import tensor_names  # noqa: PLC0415 - imports torch, as _is_dtype may

    try:
        return any(language_name(name) == "lm_head.weight" for name in tensor_names(path))
    except ModelLoadError:
        return False  # a shape without weights; other problems are reported when they are loaded


def causal_models() -> dict[str, str]:
    """Return the class name of transformers' causal language model by model_type."""
    from transformers.models.auto.modeling_auto import (  # noqa: PLC0415 - as in read_with_transformers
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def eos_token_ids(config: Any, path: Path) -> tuple[int, ...]:
    """Return the end-of-sequence tokens; generation_config.json has precedence if it exists, as in transformers.

    A token that the model lacks is left out, with a warning: no output could end with it, and forbidding it would fail.
    Raises ModelLoadError for an invalid token id.
    """
    text = config.get_text_config(decoder=True)
    eos, file = getattr(config, "eos_token_id", None), _config_file(path)
    eos = getattr(text, "eos_token_id", None) if eos is None else eos
    generation = path / "generation_config.json"
    if generation.is_file():
        try:
            generation_config = json.loads(generation.read_text())
        except ValueError as error:
            raise ModelLoadError(f"{generation} cannot be read as JSON: {error}.") from error
        if "eos_token_id" in generation_config:
            eos, file = generation_config["eos_token_id"], generation
    token_ids = eos if isinstance(eos, list | tuple) else [] if eos is None else [eos]
    for token_id in token_ids:
        if type(token_id) is not int:
            raise ModelLoadError(f"{file} has the end-of-sequence token {token_id!r}; it must be a token id.")
        if not 0 <= token_id < text.vocab_size:
            log.warning("%s: no output ends with token %d, as the model has %d tokens", file, token_id, text.vocab_size)
    return tuple(token_id for token_id in token_ids if 0 <= token_id < text.vocab_size)
