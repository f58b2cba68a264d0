"""A model's configuration as known before it is loaded, and whose code runs it.

Loads no weights and no modelling code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ModelImpl
from engine.errors import UnsupportedModelError
from engine.models.config_files import (
    check_dtype,
    check_sizes,
    eos_token_ids,
    read_raw,
    read_with_transformers,
    text_parts,
)
from engine.models.families import FAMILIES, has
from engine.models.language_part import LANGUAGE_PARTS
from engine.models.paths import resolve_model_path
from engine.models.plain_config import read_plain
from engine.models.support import check_for_transformers, layer_types, reason_against_own, rope_parameters
from engine.quantized.config import read_quantization
from engine.quantized.quantization import Quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """The configuration common to all models.

    An object of exactly this class is run by transformers' code, a `ModelConfig` by the decoder in decoder.py.
    """

    path: Path
    """A directory, or a GGUF file."""
    model_type: str
    vocab_size: int
    max_model_len: int | None
    """The longest sequence; None if config.json has no limit, as with ALiBi."""
    eos_token_ids: tuple[int, ...]
    dtype: str
    source: Any
    """Transformers' configuration object, or its substitute if our own decoder runs a plain model."""
    quantization: Quantization | None = None
    """Quantization of the files: their weights are read like unquantized ones, and `source` does not mention it."""
    is_part: bool = False
    """Whether the files hold a larger model, of which this is the language part."""
    angles_change_after: int | None = None
    """A sequence of more tokens has other rotary angles from its first token on (longrope); None: a position's angles
    do not depend on the length.
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
    """Read the configuration of a directory, GGUF file or hub id; AUTO takes our own decoder for models it supports.

    Raises ModelLoadError or UnsupportedModelError.
    """
    path = resolve_model_path(model)
    raw = read_raw(path)
    check_sizes(raw, path)
    quantization = _quantization(raw, path)
    check_dtype(raw, path)
    plain = None if impl is ModelImpl.TRANSFORMERS else read_plain(raw)
    config = read_with_transformers(raw, path) if plain is None else plain
    is_part = raw.get("model_type") in LANGUAGE_PARTS
    reason = None if impl is ModelImpl.TRANSFORMERS else reason_against_own(config, path)
    if impl is ModelImpl.TRANSFORMERS or (impl is ModelImpl.AUTO and reason is not None):
        check_for_transformers(config, path)
        return CheckpointConfig(**_common(config, path, quantization, is_part=is_part))
    if reason is not None:
        raise UnsupportedModelError(reason)
    return _own_config(config, path, quantization, is_part=is_part)


def load_body_config(model: str) -> ModelConfig:
    """Read the configuration of a decoder for our own code, whatever head its architecture has.

    Raises ModelLoadError or UnsupportedModelError.
    """
    path = resolve_model_path(model)
    raw = read_raw(path)
    check_sizes(raw, path)
    quantization = _quantization(raw, path)
    check_dtype(raw, path)
    config = read_plain(raw) or read_with_transformers(raw, path)
    reason = reason_against_own(config, path, is_body=True)
    if reason is not None:
        raise UnsupportedModelError(reason)
    return _own_config(config, path, quantization, is_part=False)


def _quantization(raw: dict[str, Any], path: Path) -> Quantization | None:
    """Return how the files are quantized; a model with other parts than text may have it in its text part alone."""
    configs = [part["quantization_config"] for part in text_parts(raw) if part.get("quantization_config") is not None]
    return read_quantization(configs[0], path, model_type=raw.get("model_type")) if configs else None


def _common(config: Any, path: Path, quantization: Quantization | None, *, is_part: bool) -> dict[str, Any]:
    text = config.get_text_config(decoder=True)
    default_dtype = "bfloat16" if quantization else "float32"  # quantized weights were made from 16 bits
    return {
        "path": path,
        "model_type": config.model_type,
        "vocab_size": text.vocab_size,
        "max_model_len": _longest_sequence(text),
        "eos_token_ids": eos_token_ids(config, path),
        "dtype": str(getattr(config, "dtype", None) or default_dtype).removeprefix("torch."),
        "source": config,
        "quantization": quantization,
        "is_part": is_part,
        "angles_change_after": _last_short_length(text),
    }


def _last_short_length(text: Any) -> int | None:
    """Return the length up to which longrope's short factors apply, if all layers have the same."""
    kinds = rope_parameters(text)
    if len(kinds) != 1 or kinds[0].get("rope_type") != "longrope":
        return None
    limit: int | None = kinds[0].get("original_max_position_embeddings")
    return limit or getattr(text, "original_max_position_embeddings", None)


def _longest_sequence(text: Any) -> int | None:
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    return limit if limit is not None and limit > 0 else None  # xlnet has -1


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


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types(config))
