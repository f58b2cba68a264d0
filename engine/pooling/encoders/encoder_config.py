"""Read an encoder's config.json, and refuse by name what is not supported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.models.families import FAMILIES
from engine.pooling.encoders import modern_config
from engine.pooling.encoders.causal_encoder import CausalConfig, read_causal_config
from engine.pooling.encoders.layers import ACTIVATIONS
from engine.pooling.encoders.modern_config import ModernConfig
from engine.pooling.json_files import read_object
from engine.pooling.purposes import ENCODERS

_COUNTS_PAST_PADDING = ("roberta", "xlm-roberta")
"""Their first token is at the position after `pad_token_id`, and a padding token in the text is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """A BERT encoder: post-norm layers, learned positions, every token sees every other one of its text."""

    path: Path
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    activation: str
    norm_eps: float
    num_positions: int
    num_token_types: int
    padding_id: int | None
    """Positions are counted from here; None if the first token is at position 0."""

    @property
    def max_tokens(self) -> int:
        """Return how many tokens have a position."""
        return self.num_positions if self.padding_id is None else self.num_positions - self.padding_id - 1


AnyConfig = EncoderConfig | ModernConfig | CausalConfig


def read_encoder_config(path: Path) -> AnyConfig:
    """Read `config.json` in a directory. Raises ModelLoadError if it is broken, UnsupportedModelError by name."""
    raw = read_object(path / "config.json")
    if not raw:
        raise ModelLoadError(f"{path} has no config.json; give a model directory as save_pretrained writes it.")
    if raw.get("model_type") in FAMILIES:
        return read_causal_config(path, raw)
    reason = next(_reasons_against(raw), None)
    if reason is not None:
        raise UnsupportedModelError(f"{path}: {reason}")
    config = _with_defaults(raw, path)
    if config.hidden_size % config.num_attention_heads:
        raise ModelLoadError(
            f"{path}: hidden_size is {config.hidden_size}, which {config.num_attention_heads} heads do not divide."
        )
    if config.model_type != modern_config.MODEL_TYPE:
        return _from(config, path)
    reason = next(modern_config.reasons_against(config), None)
    if reason is not None:
        raise UnsupportedModelError(f"{path}: {reason}")
    return modern_config.from_transformers(config, path)


def _reasons_against(raw: dict[str, Any]) -> Iterator[str]:
    model_type = raw.get("model_type")
    if model_type not in ENCODERS:
        known = ", ".join((*ENCODERS, *FAMILIES))
        yield f"model_type is {model_type!r}; embeddings and scores are computed by models of type {known}."
    if raw.get("is_decoder"):
        yield "is_decoder is true, so a token sees only those before it; embeddings need an encoder that sees all."
    if raw.get("auto_map"):
        yield "config.json has code of its own (auto_map), which is never run; take a model without."
    if raw.get("quantization_config"):
        yield "its weights are quantized; embeddings take weights in float32, bfloat16 or float16."
    positions = raw.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        yield f"position_embedding_type is {positions!r}; only absolute positions are computed."
    named = "hidden_activation" if model_type == modern_config.MODEL_TYPE else "hidden_act"
    activation = raw.get(named, "gelu")
    if activation not in ACTIVATIONS:
        yield f"{named} is {activation!r}; the activations here are {', '.join(ACTIVATIONS)}."


def _with_defaults(raw: dict[str, Any], path: Path) -> Any:
    """Return transformers' configuration, which supplies the defaults."""
    from transformers import AutoConfig  # noqa: PLC0415 - a slow import that other models do not need here

    try:
        return AutoConfig.for_model(**raw)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(
            f"{path / 'config.json'} is no configuration of a {raw['model_type']}: {reason}."
        ) from error


def _from(config: Any, path: Path) -> EncoderConfig:
    is_past_padding = config.model_type in _COUNTS_PAST_PADDING
    if is_past_padding and config.pad_token_id is None:
        raise ModelLoadError(f"{path}: config.json has no pad_token_id, and a {config.model_type} counts from it.")
    return EncoderConfig(
        path=path,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        activation=config.hidden_act,
        norm_eps=config.layer_norm_eps,
        num_positions=config.max_position_embeddings,
        num_token_types=config.type_vocab_size,
        padding_id=config.pad_token_id if is_past_padding else None,
    )
