"""The table of a model's rotary angles, with the scaling of its configuration.

The scaled frequencies are transformers' own functions; the table is what `kernels.rope` reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.models.config import CheckpointConfig, ModelConfig
from engine.models.support import rope_parameters


def rotary_table(config: ModelConfig, *, max_positions: int) -> Tensor:
    """Return cosines, then sines, of every position: `[max_positions, head_dim]` fp32 on the CPU."""
    frequencies, attention_scale = _frequencies(config)
    check_positions(config, max_positions=max_positions)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_scale


def check_positions(config: CheckpointConfig, *, max_positions: int) -> None:
    """Refuse sequences in which every further token would change the cached keys' angles. Raises UnsupportedModelError.

    Dynamic scaling does so from some length on. Longrope changes them once, for which a sequence is recomputed, unless
    layers differ in that length.
    """
    text = config.source.get_text_config(decoder=True)
    for parameters in rope_parameters(text):
        kind = parameters.get("rope_type", "default")
        limit = None
        if kind == "dynamic":
            limit = text.max_position_embeddings
        elif kind == "longrope" and config.angles_change_after is None:
            limit = parameters.get("original_max_position_embeddings") or text.original_max_position_embeddings
        if limit is not None and max_positions > limit:
            raise UnsupportedModelError(
                f"max_model_len is {max_positions}; with {kind} rope scaling it may be at most {limit}."
            )


def _frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    parameters: dict[str, Any] = config.source.rope_parameters
    if parameters["rope_type"] == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415 - a slow import, seldom needed

    frequencies, attention_scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config.source, torch.device("cpu"))
    return frequencies.float(), float(attention_scale)
