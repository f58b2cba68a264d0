"""Put both sets of longrope's angles into one table: those of short sequences, then those of long ones.

transformers takes one set for a whole batch, by its longest sequence; a batch here mixes both. Each token's position in
the step selects the row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import UnsupportedModelError


def hold_both_sets(model: Any, name: str, *, change_after: int, max_positions: int) -> None:
    """Make the model read its angles from a table of `change_after` rows of the short set followed by the long one.

    Both are computed by its own code for a sequence of `change_after` and of `max_positions` tokens. Raises
    UnsupportedModelError if that code keeps its angles elsewhere.
    """
    modules = [module for module in model.modules() if getattr(module, "rope_type", None) == "longrope"]
    if not modules:
        raise UnsupportedModelError(
            f"{name} has longrope scaling but no module with its angles; set max_model_len to at most {change_after}."
        )
    for module in modules:
        _read_from_table(module, _both_sets(module, model, lengths=(change_after, max_positions)))


def _both_sets(module: nn.Module, model: Any, *, lengths: tuple[int, int]) -> list[Tensor]:
    """Return cosines and sines, each `[rows, head_dim]` in the model's dtype."""
    like = torch.empty(0, dtype=model.dtype, device=model.device)
    sets = [module(like, torch.arange(length, device=model.device)[None]) for length in lengths]
    return [torch.cat(parts, dim=1)[0] for parts in zip(*sets, strict=True)]


def _read_from_table(module: nn.Module, tables: list[Tensor]) -> None:
    def forward(_like: Tensor, position_ids: Tensor) -> tuple[Tensor, ...]:
        return tuple(table[position_ids] for table in tables)

    module.forward = forward
