"""Make the table of rotary angles for a model, with the scaling its configuration asks for.

The scaled frequencies are transformers' own functions; the table is what `kernels.rope` reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import UnsupportedModelError
from engine.model_config import ModelConfig


def rotary_table(config: ModelConfig, *, max_positions: int) -> Tensor:
    """Return cosines, then sines, of every position: `[max_positions, head_dim]` fp32 on the CPU.

    Dynamic scaling changes the angles of all positions once a sequence passes the model's length, which cached keys
    cannot follow; up to that length it equals no scaling, and longer sequences are refused.
    """
    frequencies, attention_scale = _frequencies(config)
    if config.rope.rope_parameters["rope_type"] == "dynamic" and max_positions > config.rope.max_position_embeddings:
        raise UnsupportedModelError(
            f"max_model_len is {max_positions}; with dynamic rope scaling it may be at most "
            f"{config.rope.max_position_embeddings}."
        )
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_scale


def _frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    parameters: dict[str, Any] = config.rope.rope_parameters
    if parameters["rope_type"] == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    frequencies, attention_scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config.rope, torch.device("cpu"))
    return frequencies.float(), float(attention_scale)
