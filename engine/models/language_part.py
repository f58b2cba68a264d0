"""The language part of a multimodal model: its configuration, and the names of its tensors.

With text alone, the three kinds of positions of Qwen's M-RoPE are the same, so its language part is a Qwen2 or Qwen3.
Other tensors in the files (the vision tower, the projector) are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

LANGUAGE_PARTS: Mapping[str, str | None] = MappingProxyType({
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "mistral3": None,
})  # fmt: skip
"""The model_type of the language part, by that of the whole model; None: text_config has it."""

_LANGUAGE = (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", ""))
_OTHERS = (
    "visual.",
    "vision_tower.",
    "multi_modal_projector.",
    "model.visual.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


def language_part(config: Any, architectures: Mapping[str, str], *, has_head: bool) -> Any:
    """Return transformers' configuration of the language part; `has_head`: its files have an output matrix.

    A matrix in the files is used whatever `tie_word_embeddings` is, which is a default in some (as in transformers).
    """
    text = config.get_text_config(decoder=True)
    settings = text.to_dict()
    for name in ("model_type", "architectures", "transformers_version", "tie_word_embeddings", "dtype"):
        settings.pop(name, None)
    rope = settings.get("rope_parameters") or {}
    settings["rope_parameters"] = {name: value for name, value in rope.items() if not name.startswith("mrope")}
    model_type = LANGUAGE_PARTS[config.model_type] or text.model_type
    from transformers import AutoConfig  # noqa: PLC0415 - a slow import that plain models do not need here

    return AutoConfig.for_model(
        model_type,
        **settings,
        architectures=[architectures.get(model_type, model_type)],
        dtype=config.dtype,
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)) and not has_head,
    )


def language_name(name: str) -> str | None:
    """Return a tensor's name in the language model alone, None if it belongs to another part."""
    if name.startswith(_OTHERS):
        return None
    for prefix, plain in _LANGUAGE:
        if name.startswith(prefix):
            return plain + name.removeprefix(prefix)
    return name
