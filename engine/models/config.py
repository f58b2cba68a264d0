"""Read a model's config.json or a GGUF file's metadata, decide whose code runs it, and refuse what neither has.

transformers reads a config.json that is not plain (it knows every old spelling); nothing here loads weights or
modelling code.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ModelImpl
from engine.errors import ModelLoadError, UnsupportedModelError
from engine.gguf.container import GgufFile, is_gguf
from engine.models.families import FAMILIES, Windows, has
from engine.models.language_part import LANGUAGE_PARTS, language_name, language_part
from engine.models.paths import resolve_model_path
from engine.models.plain_config import read_plain
from engine.models.quantization import Quantization, read_quantization

log = logging.getLogger(__name__)

_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """What the engine knows of every model.

    An object of this very class is run by transformers' code, a `ModelConfig` by the decoder in decoder.py.
    """

    path: Path
    """A folder, or a GGUF file."""
    model_type: str
    vocab_size: int
    max_model_len: int | None
    """The longest sequence; None where config.json names none, as with ALiBi."""
    eos_token_ids: tuple[int, ...]
    dtype: str
    source: Any
    """Transformers' configuration object, or what stands in for it where our own decoder runs a plain model."""
    quantization: Quantization | None = None
    """That of the files: weights are made whole when they are loaded, and `source` knows nothing of it."""
    is_part: bool = False
    """Whether the files hold more than this model, which is the language part of theirs."""
    angles_change_after: int | None = None
    """A sequence of more tokens has other rotary angles from its first token on (longrope); None: whatever its length,
    a position has the same.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(CheckpointConfig):
    """A Llama-family decoder. `windows[i]` is layer i's sliding window in tokens, None for full attention."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    windows: tuple[int | None, ...]


def load_model_config(model: str, *, impl: ModelImpl = ModelImpl.AUTO) -> CheckpointConfig:
    """Read what a directory, a GGUF file or a hub id says; AUTO takes our own decoder for every model that it covers.

    Raises ModelLoadError or UnsupportedModelError.
    """
    path = resolve_model_path(model)
    raw = _read_raw(path)
    quantization = _quantization(raw, path)
    _check_dtype(raw, path)
    plain = None if impl is ModelImpl.TRANSFORMERS else read_plain(raw)
    config = _read_with_transformers(raw, path) if plain is None else plain
    is_part = raw.get("model_type") in LANGUAGE_PARTS
    if impl is ModelImpl.TRANSFORMERS or (impl is ModelImpl.AUTO and _reason_against_own(config, path)):
        _check_for_transformers(config, path)
        return CheckpointConfig(**_common(config, path, quantization, is_part=is_part))
    reason = _reason_against_own(config, path)
    if reason is not None:
        raise UnsupportedModelError(reason)
    return _own_config(config, path, quantization, is_part=is_part)


def load_body_config(model: str) -> ModelConfig:
    """Read what a directory or a hub id says of a decoder for our own code, whatever head its architecture names.

    Raises ModelLoadError or UnsupportedModelError.
    """
    path = resolve_model_path(model)
    raw = _read_raw(path)
    quantization = _quantization(raw, path)
    _check_dtype(raw, path)
    config = read_plain(raw) or _read_with_transformers(raw, path)
    reason = _reason_against_own(config, path, is_body=True)
    if reason is not None:
        raise UnsupportedModelError(reason)
    return _own_config(config, path, quantization, is_part=False)


def _read_raw(path: Path) -> dict[str, Any]:
    """Return the model's config.json, or what would stand in it."""
    if is_gguf(path):
        from engine.gguf.config import read_config  # noqa: PLC0415 - imports torch, as in _check_dtype

        return read_config(GgufFile(path))
    try:
        raw = json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path / 'config.json'} cannot be read as JSON: {error}.") from error
    return raw if isinstance(raw, dict) else {}


def _quantization(raw: dict[str, Any], path: Path) -> Quantization | None:
    """Return how the files are quantized, which a model with other parts than text may say of its text alone."""
    given = [part["quantization_config"] for part in _parts(raw) if part.get("quantization_config") is not None]
    return read_quantization(given[0], path, model_type=raw.get("model_type")) if given else None


def _parts(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what may say something of the text's weights."""
    text = raw.get("text_config")
    return [raw, text] if isinstance(text, dict) else [raw]


def _check_dtype(raw: dict[str, Any], path: Path) -> None:
    """Refuse a dtype that transformers would look up in torch and not find there."""
    import torch  # noqa: PLC0415 - a slow import; a worker that only looks for a model's directory does not need it

    for part in _parts(raw):
        for name in ("dtype", "torch_dtype"):
            dtype = part.get(name)
            if isinstance(dtype, str) and not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ModelLoadError(
                    f"{path / 'config.json'} has {name} {dtype!r}; it must be the name of a dtype that torch has, such "
                    "as bfloat16, or be left out."
                )


def _config_file(path: Path) -> Path:
    return path if is_gguf(path) else path / "config.json"


def _read_with_transformers(raw: dict[str, Any], path: Path) -> Any:
    """Return transformers' configuration of the model as it is loaded, which is not quantized."""
    model_type = raw.get("model_type")
    if model_type not in _causal_models() and model_type not in LANGUAGE_PARTS:
        raise UnsupportedModelError(
            f"{path} has model_type {model_type!r}, for which the installed transformers has no causal language model; "
            "code that comes with a model is not run. docs/models.md lists what is proven."
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
    return language_part(config, _causal_models(), has_head=_has_head(path))


def _has_head(path: Path) -> bool:
    """Tell whether a model's files, where it has any, hold an output matrix."""
    from engine.models.weights import tensor_names  # noqa: PLC0415 - imports torch, as in _check_dtype

    try:
        return any(language_name(name) == "lm_head.weight" for name in tensor_names(path))
    except ModelLoadError:
        return False  # a shape without weights; what else is wrong is said when they are loaded


def _causal_models() -> dict[str, str]:
    """Return the class name of transformers' causal language model by model_type."""
    from transformers.models.auto.modeling_auto import (  # noqa: PLC0415 - as in _read_with_transformers
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )

    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _common(config: Any, path: Path, quantization: Quantization | None, *, is_part: bool) -> dict[str, Any]:
    text = config.get_text_config(decoder=True)
    default_dtype = "bfloat16" if quantization else "float32"  # what is quantized was made from 16 bits
    return {
        "path": path,
        "model_type": config.model_type,
        "vocab_size": text.vocab_size,
        "max_model_len": _longest_sequence(text),
        "eos_token_ids": _eos_token_ids(config, path),
        "dtype": str(getattr(config, "dtype", None) or default_dtype).removeprefix("torch."),
        "source": config,
        "quantization": quantization,
        "is_part": is_part,
        "angles_change_after": _last_short_length(text),
    }


def rope_parameters(text: Any) -> list[dict[str, Any]]:
    """Return the rope settings of a configuration, one for all layers or one for each type of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [entry for entry in parameters.values() if isinstance(entry, dict)]
    return nested or [parameters]


def _last_short_length(text: Any) -> int | None:
    """Return the length up to which longrope's short factors hold, where all layers have it alike."""
    kinds = rope_parameters(text)
    if len(kinds) != 1 or kinds[0].get("rope_type") != "longrope":
        return None
    limit: int | None = kinds[0].get("original_max_position_embeddings")
    return limit or getattr(text, "original_max_position_embeddings", None)


def _longest_sequence(text: Any) -> int | None:
    given = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    return given if given is not None and given > 0 else None  # xlnet says -1


def _own_config(config: Any, path: Path, quantization: Quantization | None, *, is_part: bool) -> ModelConfig:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    family = FAMILIES[config.model_type]
    return ModelConfig(
        **_common(config, path, quantization, is_part=is_part),
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        has_tied_embeddings=bool(config.tie_word_embeddings),
        has_qkv_bias=has(family.qkv_bias, config),
        has_output_bias=has(family.output_bias, config),
        has_mlp_bias=has(family.mlp_bias, config),
        has_qk_norm=family.has_qk_norm,
        windows=_windows(config),
    )


def _reason_against_own(config: Any, path: Path, *, is_body: bool = False) -> str | None:
    """Say what our own decoder lacks for this model, or for its layers alone, None when it has everything."""
    if config.model_type not in FAMILIES:
        return f"{path} has model_type {config.model_type!r}; our own decoder covers {', '.join(FAMILIES)}."
    return next((f"{path} {reason}" for reason in _gaps(config, is_body=is_body)), None)


def _gaps(config: Any, *, is_body: bool) -> Iterator[str]:
    wanted = FAMILIES[config.model_type].architecture
    architectures = getattr(config, "architectures", None) or [wanted]
    if wanted not in architectures and not is_body:
        yield f"is a {architectures[0]}; of {config.model_type} only {wanted} is supported."
    if config.hidden_act != "silu":
        yield f"has hidden_act {config.hidden_act!r}; our own decoder has 'silu'."
    rope = config.rope_parameters
    if rope["rope_type"] not in _ROPE_TYPES:
        yield f"has rope_type {rope['rope_type']!r}; our own decoder has {', '.join(_ROPE_TYPES)}."
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"has partial_rotary_factor {rope['partial_rotary_factor']}; our own decoder has 1."
    for layer_type in _layer_types(config):
        if layer_type not in ("full_attention", "sliding_attention"):
            yield f"has a layer of type {layer_type!r}; supported are full_attention and sliding_attention."


def _check_for_transformers(config: Any, path: Path) -> None:
    """Refuse what config.json alone shows; transformers_checks.py looks at the loaded model."""
    wanted = _causal_models()[config.model_type]
    architectures = getattr(config, "architectures", None) or [wanted]
    if wanted not in architectures:
        raise UnsupportedModelError(
            f"{path} is a {architectures[0]}; of {config.model_type} only {wanted} is supported."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{path} is an encoder-decoder model; only decoders are supported.")
    for layer_type in _named_layers(config.get_text_config(decoder=True)):
        if layer_type not in _ATTENTION_LAYERS:
            raise UnsupportedModelError(
                f"{path} has a layer of type {layer_type!r}; supported are full_attention and sliding_attention."
            )


def _named_layers(text: Any) -> Iterator[str]:
    """Yield the layer types that a configuration lists, under either name that transformers has for the list."""
    for name in ("layer_types", "layers_block_type"):
        yield from getattr(text, name, None) or ()


def _layer_types(config: Any) -> list[str]:
    """Return each layer's type, by the list in the configuration only where transformers reads it, too."""
    windows = FAMILIES[config.model_type].windows
    if windows is Windows.LISTED:
        return list(config.layer_types)
    has_window = windows is Windows.EVERY_LAYER and config.sliding_window is not None
    return ["sliding_attention" if has_window else "full_attention"] * int(config.num_hidden_layers)


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    return tuple(window if kind == "sliding_attention" else None for kind in _layer_types(config))


def _eos_token_ids(config: Any, path: Path) -> tuple[int, ...]:
    """Return the end-of-sequence tokens; generation_config.json, where there is one, decides as in transformers.

    One that the model lacks is left out, with a warning: no output could end with it, and forbidding it would fail.
    Raises ModelLoadError for what is no token id.
    """
    text = config.get_text_config(decoder=True)
    eos, file = getattr(config, "eos_token_id", None), _config_file(path)
    eos = text.eos_token_id if eos is None else eos
    generation = path / "generation_config.json"
    if generation.is_file():
        try:
            given = json.loads(generation.read_text())
        except ValueError as error:
            raise ModelLoadError(f"{generation} cannot be read as JSON: {error}.") from error
        if "eos_token_id" in given:
            eos, file = given["eos_token_id"], generation
    token_ids = eos if isinstance(eos, list | tuple) else [] if eos is None else [eos]
    for token_id in token_ids:
        if type(token_id) is not int:
            raise ModelLoadError(f"{file} gives the end-of-sequence token {token_id!r}; it must be a token's number.")
        if not 0 <= token_id < text.vocab_size:
            log.warning("%s: no output ends with token %d, the model has %d tokens", file, token_id, text.vocab_size)
    return tuple(token_id for token_id in token_ids if 0 <= token_id < text.vocab_size)
