"""Write weights of whole numbers number by number, as the formats publish them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import ModelLoadError

NAME = "model.layers.0.mlp.up_proj"
"""Of a module."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of each 4 bits of an int32, lowest first."""


class Stored(dict[str, Tensor]):
    """Tensors of a checkpoint."""

    def stored(self, name: str) -> Tensor:
        if name not in self:
            raise ModelLoadError(f"no tensor {name}")
        return self[name]

    def described(self, name: str) -> str:
        return f"the tensor {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A weight `[out, in]`: scale · (number − zero), whose numbers and zeros are from 0 to 2^bits − 1."""

    bits: int
    numbers: Tensor
    """`[out, in]`."""
    scales: Tensor
    """`[out, scales]`."""
    zeros: Tensor
    """`[out, scales]`."""
    places: Tensor
    """`[in]`: the scale of a number."""

    @property
    def values(self) -> Tensor:
        """The weight in fp32."""
        scales, zeros = self.scales.double()[:, self.places], self.zeros[:, self.places]
        return (scales * (self.numbers - zeros)).float()


def some_weight(
    shape: tuple[int, int],
    *,
    bits: int,
    group: int | None,
    is_symmetric: bool,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
    size: float = 1.0,
) -> Quantized:
    """Return random numbers, whose values are about as large as `size`."""
    generator = torch.Generator().manual_seed(seed)
    (width, depth), most = shape, 2**bits
    num_scales = -(-depth // (group or depth))
    zeros = torch.full((width, num_scales), most // 2)
    if not is_symmetric:
        zeros = torch.randint(1, most, (width, num_scales), generator=generator)
    scales = (torch.rand((width, num_scales), generator=generator) + 0.5) * size / most
    return Quantized(
        bits=bits,
        numbers=torch.randint(0, most, shape, generator=generator),
        scales=scales.to(dtype),
        zeros=zeros,
        places=torch.arange(depth) // (group or depth),
    )


def quantized(weight: Tensor, *, bits: int, group: int | None, is_symmetric: bool, dtype: torch.dtype) -> Quantized:
    """Return the numbers nearest to a weight."""
    width, depth = weight.shape
    groups, most = weight.float().view(width, -1, group or depth), 2**bits - 1
    if is_symmetric:
        scales = (groups.abs().amax(2) / (most // 2)).to(dtype)
        zeros = torch.full(scales.shape, (most + 1) // 2)
    else:
        low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
        scales = ((high - low) / most).to(dtype)
        zeros = (-low / scales.float()).round().long().clamp(0, most)
    places = torch.arange(depth) // (group or depth)
    numbers = (weight.float() / scales.float()[:, places]).round().long() + zeros[:, places]
    return Quantized(bits=bits, numbers=numbers.clamp(0, most), scales=scales, zeros=zeros, places=places)


def in_words(numbers: Tensor, bits: int) -> Tensor:
    """Pack rows of numbers into int32, lowest bits first."""
    each = 32 // bits
    words = torch.zeros((numbers.shape[0], -(-numbers.shape[1] // each)), dtype=torch.int64)
    for column in range(numbers.shape[1]):
        words[:, column // each] |= numbers[:, column] << bits * (column % each)
    return words.to(torch.int32)


def as_gptq(weight: Quantized, *, is_first_version: bool = True) -> dict[str, Tensor]:
    zeros = weight.zeros - 1 if is_first_version else weight.zeros
    return {
        "qweight": in_words(weight.numbers, weight.bits).T.contiguous(),
        "qzeros": in_words(zeros.T, weight.bits),
        "scales": weight.scales.T.contiguous(),
        "g_idx": weight.places.to(torch.int32),
    }


def as_awq(weight: Quantized) -> dict[str, Tensor]:
    def words(numbers: Tensor) -> Tensor:
        return in_words(numbers.unflatten(1, (-1, 8))[:, :, AWQ_ORDER].flatten(1), 4)

    return {
        "qweight": words(weight.numbers.T),
        "qzeros": words(weight.zeros.T),
        "scales": weight.scales.T.contiguous(),
    }


def as_packed(weight: Quantized, *, is_symmetric: bool) -> dict[str, Tensor]:
    tensors = {
        "weight_packed": in_words(weight.numbers, weight.bits),
        "weight_scale": weight.scales,
        "weight_shape": torch.tensor(weight.numbers.shape),
    }
    return (
        tensors
        if is_symmetric
        else tensors | {"weight_zero_point": in_words(weight.zeros.T, weight.bits).T.contiguous()}
    )


def as_bytes(weight: Quantized, *, is_symmetric: bool) -> dict[str, Tensor]:
    half = 2 ** (weight.bits - 1)
    tensors = {"weight": (weight.numbers - half).to(torch.int8), "weight_scale": weight.scales}
    return tensors if is_symmetric else tensors | {"weight_zero_point": (weight.zeros - half).to(torch.int8)}
