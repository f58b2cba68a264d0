"""Configuration of a ModernBERT encoder, and the reasons to refuse one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL_TYPE = "modernbert"

_SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A layer's attention window, and its rotary positions."""

    window: int | None
    """How many tokens it sees before and after its own; None: all."""
    theta: float
    """The base of its rotary positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernConfig:
    """A ModernBERT encoder: pre-norm layers with gated units and rotary positions."""

    path: Path
    model_type: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    activation: str
    norm_eps: float
    max_tokens: int
    has_norm_bias: bool
    has_attention_bias: bool
    has_mlp_bias: bool
    layers: tuple[Sight, ...]
    head_pooling: str
    """Pooling of the scoring head: cls or mean."""
    head_activation: str
    has_head_bias: bool


def reasons_against(config: Any) -> Iterator[str]:
    """Yield the parts of transformers' configuration that are not supported."""
    for layer_type in sorted(set(config.layer_types)):
        rope = config.rope_parameters[layer_type]
        if rope["rope_type"] != "default":
            yield f"rope_type of {layer_type} is {rope['rope_type']!r}; only the default one is computed."
    if config.hidden_size // config.num_attention_heads % 2:
        yield (
            f"a head has {config.hidden_size // config.num_attention_heads} numbers; rotary positions need an even one."
        )


def from_transformers(config: Any, path: Path) -> ModernConfig:
    """Return the configuration from a supported one of transformers."""
    return ModernConfig(
        path=path,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        activation=config.hidden_activation,
        norm_eps=config.norm_eps,
        max_tokens=config.max_position_embeddings,
        has_norm_bias=config.norm_bias,
        has_attention_bias=config.attention_bias,
        has_mlp_bias=config.mlp_bias,
        layers=tuple(
            Sight(
                window=config.local_attention // 2 if layer_type == _SLIDING else None,
                theta=config.rope_parameters[layer_type]["rope_theta"],
            )
            for layer_type in config.layer_types
        ),
        head_pooling=config.classifier_pooling,
        head_activation=config.classifier_activation,
        has_head_bias=config.classifier_bias,
    )
