"""The dtypes of encoders: how weights are stored, and in which dtype rows are computed."""

from __future__ import annotations

from enum import StrEnum

import torch

from engine.errors import InvalidConfigError


class Dtype(StrEnum):
    """A dtype; vectors of two dtypes are not the same, though nearly."""

    FLOAT32 = "float32"
    """The default."""
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    """Weights of 8 bits in groups of 32, rows of bfloat16."""

    @property
    def of_rows(self) -> torch.dtype:
        """Return the dtype of hidden rows."""
        return torch.float32 if self is Dtype.FLOAT32 else torch.bfloat16


def read_dtype(name: str) -> Dtype:
    """Return the dtype of this name; `auto` is float32. Raises InvalidConfigError."""
    if name == "auto":
        return Dtype.FLOAT32
    if name not in list(Dtype):
        raise InvalidConfigError(f"dtype is {name!r}; for embeddings and scores use auto, {', '.join(Dtype)}.")
    return Dtype(name)
