"""Read the config.json of a plain model of our own families without transformers, which loads as slowly as torch.

Plain means: only keys and values that are known here, in the form that transformers 5 or 4 writes, without scaling of
rotary angles. Everything else, above all an unknown key, is left to transformers: it knows every old spelling, and
reports errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.models.families import FAMILIES

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """The part of transformers' configuration that our decoder is built from, under transformers' names."""

    model_type: str
    architectures: list[str] | None
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope_parameters: dict[str, Any]
    eos_token_id: int | list[int] | None
    dtype: str | None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    layer_types: list[str] = field(default_factory=list)

    def get_text_config(self, *, decoder: bool) -> PlainConfig:
        """Return itself: the whole model is text."""
        del decoder
        return self


def read_plain(raw: Mapping[str, Any]) -> PlainConfig | None:
    """Return a plain config.json's values, None if transformers has to read it."""
    family = str(raw.get("model_type"))
    if family not in FAMILIES:
        return None
    checks = _REQUIRED | _SOMETIMES | _OF_FAMILY[family]
    rope = _rope(raw)
    if rope is None or not _REQUIRED.keys() | _REQUIRED_OF_FAMILY[family] <= raw.keys():
        return None
    if not all(name in checks and checks[name](value) for name, value in raw.items()):
        return None
    if not _fits_together(raw):
        return None
    heads, layers = raw["num_attention_heads"], raw["num_hidden_layers"]
    return PlainConfig(
        **{name: raw[name] for name in _TAKEN if name in raw},
        architectures=raw.get("architectures"),
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        dtype=raw.get("dtype") or raw.get("torch_dtype"),
        rope_parameters=rope,
        sliding_window=raw["sliding_window"] if family == "mistral" else None,
        layer_types=["full_attention"] * layers if family.startswith("qwen") else [],
    )


def _rope(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rotary angles' parameters if nothing scales them."""
    rope = raw.get("rope_parameters")
    if rope is None:
        rope = {"rope_theta": raw.get("rope_theta"), "rope_type": "default"}
    elif "rope_theta" in raw or "rope_scaling" in raw or not isinstance(rope, dict):
        return None
    if rope.keys() != {"rope_theta", "rope_type"} or rope["rope_type"] != "default":
        return None
    return dict(rope) if _is_number(rope["rope_theta"]) and rope["rope_theta"] > 0 else None


def _fits_together(raw: Mapping[str, Any]) -> bool:
    """Check the conditions on several keys that transformers checks or warns of."""
    heads, vocab_size = raw["num_attention_heads"], raw["vocab_size"]
    head_dim = raw.get("head_dim") or raw["hidden_size"] // heads
    eos = raw["eos_token_id"]
    token_ids = [raw.get("bos_token_id"), raw.get("pad_token_id"), *(eos if isinstance(eos, list) else [eos])]
    return (
        raw["hidden_size"] % heads == 0
        and head_dim % 2 == 0
        and all(token_id is None or 0 <= token_id < vocab_size for token_id in token_ids)
        and raw.get("architectures") in (None, [FAMILIES[raw["model_type"]].architecture])
        and raw.get("layer_types") in (None, ["full_attention"] * raw["num_hidden_layers"])
    )


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_size_or_none(value: Any) -> bool:
    return value is None or _is_size(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_float(value: Any) -> bool:
    return type(value) is float


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_token(value: Any) -> bool:
    return value is None or type(value) is int


def _are_tokens(value: Any) -> bool:
    return _is_token(value) or (isinstance(value, list) and len(value) > 0 and all(type(one) is int for one in value))


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_TAKEN = (*_SIZES, "model_type", "rms_norm_eps", "tie_word_embeddings", "eos_token_id", "attention_bias", "mlp_bias")

_REQUIRED: dict[str, Check] = {
    **dict.fromkeys(_SIZES, _is_size),
    "model_type": _is_text,
    "rms_norm_eps": _is_float,
    "tie_word_embeddings": _is_bool,
    "hidden_act": lambda value: value == "silu",
    "eos_token_id": _are_tokens,
}
"""Keys whose default only transformers knows are required."""

_SOMETIMES: dict[str, Check] = {
    "architectures": lambda value: value is None or isinstance(value, list),
    "rope_parameters": lambda value: True,  # checked separately
    "rope_theta": lambda value: True,
    "rope_scaling": lambda value: value is None,
    "bos_token_id": _is_token,
    "pad_token_id": _is_token,
    "dtype": _is_text,
    "torch_dtype": _is_text,
    "use_cache": _is_bool,
    "initializer_range": lambda value: _is_float(value) and 0.0 <= value <= 1.0,
    "attention_dropout": _is_number,
    "transformers_version": _is_text,
    "_name_or_path": _is_text,
}
"""Optional keys, and keys that change nothing here. `dtype` has precedence over its old name."""

_OF_FAMILY: dict[str, dict[str, Check]] = {
    "llama": {
        "head_dim": _is_size_or_none,
        "attention_bias": _is_bool,
        "mlp_bias": _is_bool,
        "pretraining_tp": _is_size,
    },
    "mistral": {"head_dim": _is_size_or_none, "sliding_window": _is_size_or_none},
    "qwen2": {
        "use_sliding_window": lambda value: value is False,
        "sliding_window": _is_size_or_none,
        "max_window_layers": _is_size,
        "layer_types": lambda value: isinstance(value, list),
    },
    "qwen3": {
        "head_dim": _is_size,
        "attention_bias": _is_bool,
        "use_sliding_window": lambda value: value is False,
        "sliding_window": _is_size_or_none,
        "max_window_layers": _is_size,
        "layer_types": lambda value: isinstance(value, list),
    },
}

_REQUIRED_OF_FAMILY: dict[str, set[str]] = {
    "llama": set(),
    "mistral": {"sliding_window"},
    "qwen2": {"use_sliding_window"},
    "qwen3": {"use_sliding_window", "head_dim"},
}
