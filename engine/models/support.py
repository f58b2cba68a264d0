"""Whose code can run a model: the features that our own decoder lacks for it, and models that nothing here runs.

Reads configurations only; transformers_checks.py checks a model that transformers has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.models.config_files import causal_models
from engine.models.families import FAMILIES, Windows

_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "attention")


def reason_against_own(config: Any, path: Path, *, is_body: bool = False) -> str | None:
    """Return what our own decoder lacks for this model, or for its layers alone, None if it supports everything."""
    if config.model_type not in FAMILIES:
        return f"{path} has model_type {config.model_type!r}; our own decoder covers {', '.join(FAMILIES)}."
    return next((f"{path} {reason}" for reason in _gaps(config, is_body=is_body)), None)


def _gaps(config: Any, *, is_body: bool) -> Iterator[str]:
    supported = FAMILIES[config.model_type].architecture
    architectures = getattr(config, "architectures", None) or [supported]
    if supported not in architectures and not is_body:
        yield f"is a {architectures[0]}; of {config.model_type} only {supported} is supported."
    if config.hidden_act != "silu":
        yield f"has hidden_act {config.hidden_act!r}; our own decoder has 'silu'."
    rope = config.rope_parameters
    if rope["rope_type"] not in _ROPE_TYPES:
        yield f"has rope_type {rope['rope_type']!r}; our own decoder has {', '.join(_ROPE_TYPES)}."
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield f"has partial_rotary_factor {rope['partial_rotary_factor']}; our own decoder has 1."
    for layer_type in layer_types(config):
        if layer_type not in ("full_attention", "sliding_attention"):
            yield f"has a layer of type {layer_type!r}; supported are full_attention and sliding_attention."


def check_for_transformers(config: Any, path: Path) -> None:
    """Raise UnsupportedModelError for features that transformers' code cannot use here."""
    supported = causal_models()[config.model_type]
    architectures = getattr(config, "architectures", None) or [supported]
    if supported not in architectures:
        raise UnsupportedModelError(
            f"{path} is a {architectures[0]}; of {config.model_type} only {supported} is supported."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{path} is an encoder-decoder model; only decoders are supported.")
    text = config.get_text_config(decoder=True)
    for rope in rope_parameters(text):
        if rope.get("rope_type", "default") not in _known_rope_types():
            raise UnsupportedModelError(
                f"{path} has rope_type {rope['rope_type']!r}; the installed transformers has "
                f"{', '.join(_known_rope_types())}."
            )
    for layer_type in _named_layers(text):
        if layer_type not in _ATTENTION_LAYERS:
            raise UnsupportedModelError(
                f"{path} has a layer of type {layer_type!r}; supported are full_attention and sliding_attention."
            )


def rope_parameters(text: Any) -> list[dict[str, Any]]:
    """Return the rope settings of a configuration, one for all layers or one for each type of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [entry for entry in parameters.values() if isinstance(entry, dict)]
    return nested or [parameters]


def _known_rope_types() -> list[str]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415 - a slow import

    return sorted({"default", *ROPE_INIT_FUNCTIONS})


def _named_layers(text: Any) -> Iterator[str]:
    """Yield the layer types that a configuration lists, under either of transformers' names for the list."""
    for name in ("layer_types", "layers_block_type"):
        yield from getattr(text, name, None) or ()


def layer_types(config: Any) -> list[str]:
    """Return each layer's type, from the list in the configuration only if transformers reads it, too."""
    windows = FAMILIES[config.model_type].windows
    if windows is Windows.LISTED:
        return list(config.layer_types)
    has_window = windows is Windows.EVERY_LAYER and config.sliding_window is not None
    return ["sliding_attention" if has_window else "full_attention"] * int(config.num_hidden_layers)
