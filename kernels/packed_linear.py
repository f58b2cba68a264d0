"""A linear layer for CPU inference, its weight packed once into oneDNN's blocked layout. Knows no model.

    y = x · Wᵀ + b

`torch.ops.mkldnn._reorder_linear_weight` and `_linear_pointwise` are private operators of PyTorch: they are probed when
a layer is built, and the layer falls back to `F.linear` where they are missing or refuse the dtype.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


class PackedLinear:
    """Hold one linear layer in the layout that is fastest on its device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply: `[tokens, in]` to `[tokens, out]`."""
        return functional.linear(x, self._weight, self._bias)
