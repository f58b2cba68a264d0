"""The model families that our own decoder runs, and how they differ.

To add one, add a row here and one in tests/engine/models/families.py, which tests and documents it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

Given = bool | str
"""Always, never, or the field of config.json that decides."""


class Windows(StrEnum):
    """Which layers use the sliding window of config.json, if it has one."""

    NONE = "none"
    EVERY_LAYER = "every layer"
    LISTED = "listed"
    """Those that are sliding_attention in `layer_types`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """What the models of one model_type have beyond a Llama decoder without biases."""

    model_type: str
    architecture: str
    """The class of transformers; other heads on the same decoder are refused."""
    qkv_bias: Given = False
    """Bias of the projections to queries, keys and values."""
    output_bias: Given = False
    """Bias of the projection behind attention."""
    mlp_bias: Given = False
    has_qk_norm: bool = False
    """An RMS norm on each head's queries and keys."""
    windows: Windows = Windows.NONE


_ROWS = (
    DecoderFamily(
        model_type="llama",
        architecture="LlamaForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    DecoderFamily(model_type="mistral", architecture="MistralForCausalLM", windows=Windows.EVERY_LAYER),
    DecoderFamily(model_type="qwen2", architecture="Qwen2ForCausalLM", qkv_bias=True, windows=Windows.LISTED),
    DecoderFamily(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        has_qk_norm=True,
        windows=Windows.LISTED,
    ),
)

FAMILIES: Mapping[str, DecoderFamily] = MappingProxyType({row.model_type: row for row in _ROWS})


def has(feature: Given, config: Any) -> bool:
    """Tell whether a model has a feature; `config` is transformers' configuration."""
    return feature if isinstance(feature, bool) else bool(getattr(config, feature, False))
