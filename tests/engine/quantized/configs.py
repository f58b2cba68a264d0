"""A quantization_config as compressed-tensors writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PATH = Path("/models/m")

WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}


def compressed(stored_as: str, *, weights: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    scheme = {"targets": ["Linear"], "weights": WEIGHTS if weights is None else weights, "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": stored_as, "config_groups": {"group_0": scheme}}
    return {**config, "quantization_status": "compressed", "ignore": ["lm_head"], **changes}
