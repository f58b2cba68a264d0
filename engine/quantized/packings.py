"""Where formats have numbers, scales and zeros of a weight of whole numbers.

Sources: AutoAWQ's utils/packing_utils.py, GPTQModel's utils/model.py, compressed-tensors' pack_quantized/helpers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from engine.quantized.integers import Scales
from engine.quantized.quantization import Integers, Packing
from engine.quantized.stored import FLOATS, Parts


class Packed(Protocol):
    """Reads one weight from its parts; every method raises ModelLoadError for one that is missing or does not fit."""

    def scales(self) -> Scales:
        """Return all but the numbers."""
        ...

    def numbers(self) -> Tensor:
        """Return the numbers, uint8 `[out, in]` from 0 on."""
        ...


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the numbers of int32 `[rows, words]`, lowest bits first: uint8 `[rows, numbers]`."""
    stored = words.contiguous().view(torch.uint8)
    return stored if bits == 8 else torch.stack((stored & 15, stored >> 4), dim=2).flatten(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptqWeight:
    """qweight `[in / n, out]` holds n numbers of a column in an int32, qzeros `[scales, out / n]` n zeros of a row."""

    parts: Parts
    stored: Integers

    def scales(self) -> Scales:
        """Return all but the numbers."""
        bits, each = self.stored.bits, 32 // self.stored.bits
        rows, width = self._words().shape
        num_scales, shared = _sharing(self.stored, rows * each)
        scales = self.parts.read("scales", (num_scales, width), *FLOATS)
        words = self.parts.read("qzeros", (num_scales, -(-width // each)), torch.int32)
        if self.stored.packing is Packing.GPTQ:
            words = words + _ONES[bits]
        zeros = unpacked(words, bits)[:, :width].T
        is_even = self.stored.is_symmetric and bool((zeros == 2 ** (bits - 1)).all())
        return Scales(
            depth=rows * each,
            bits=bits,
            shared=shared,
            scales=scales.T.contiguous(),
            zeros=None if is_even else zeros.contiguous(),
            places=_places(self.parts, "g_idx", self.stored, rows * each),
        )

    def numbers(self) -> Tensor:
        """Return the numbers."""
        return unpacked(self._words().T, self.stored.bits)

    def _words(self) -> Tensor:
        return self.parts.read("qweight", (None, None), torch.int32)


_ONES = MappingProxyType({4: 0x11111111, 8: 0x01010101})
"""What the zeros of an int32 lack in GPTQ's first version; a sum may carry, as the difference did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqWeight:
    """qweight `[in, out / 8]` and qzeros `[scales, out / 8]` hold 8 numbers of a row in an int32, even ones first."""

    parts: Parts
    stored: Integers

    def scales(self) -> Scales:
        """Return all but the numbers."""
        depth, words = self._words().shape
        num_scales, shared = _sharing(self.stored, depth)
        scales = self.parts.read("scales", (num_scales, words * _AWQ_NUMBERS), *FLOATS)
        zeros = self._unpacked(self.parts.read("qzeros", (num_scales, words), torch.int32))
        return Scales(depth=depth, bits=4, shared=shared, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())

    def numbers(self) -> Tensor:
        """Return the numbers."""
        return self._unpacked(self._words()).T.contiguous()

    def _words(self) -> Tensor:
        return self.parts.read("qweight", (None, None), torch.int32)

    def _unpacked(self, words: Tensor) -> Tensor:
        places = torch.tensor(_AWQ_PLACES)
        stored = unpacked(words, 4)
        return stored.view(len(stored), -1, _AWQ_NUMBERS).index_select(2, places).flatten(1)


_AWQ_NUMBERS = 8
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Of the columns 0 to 7 in an int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedWeight:
    """weight_packed `[out, in / n]` holds n numbers of a row in an int32, or weight `[out, in]` each in an int8."""

    parts: Parts
    stored: Integers

    def scales(self) -> Scales:
        """Return all but the numbers."""
        width, depth = self._shape()
        num_scales, shared = _sharing(self.stored, depth)
        scales = self._of_all("weight_scale", (width, num_scales), *FLOATS)
        return Scales(
            depth=depth,
            bits=self.stored.bits,
            shared=shared,
            scales=scales,
            zeros=None if self.stored.is_symmetric else self._zeros((width, num_scales)),
            places=_places(self.parts, "weight_g_idx", self.stored, depth),
        )

    def numbers(self) -> Tensor:
        """Return the numbers."""
        if self.stored.packing is Packing.BYTES:
            return self._from_zero(self.parts.read("weight", (None, None), torch.int8), "weight")
        words = self.parts.read("weight_packed", (None, None), torch.int32)
        return unpacked(words, self.stored.bits)[:, : self._shape()[1]]

    def _shape(self) -> tuple[int, int]:
        if self.stored.packing is Packing.BYTES:
            width, depth = self.parts.read("weight", (None, None), torch.int8).shape
            return width, depth
        width, depth = self.parts.read("weight_shape", (2,), *_INDICES).tolist()
        words = -(-depth * self.stored.bits // 32)
        self.parts.read("weight_packed", (width, words), torch.int32)
        return width, depth

    def _zeros(self, shape: tuple[int, int]) -> Tensor:
        """Return zeros: int8, or packed along the outputs if numbers are packed and have more scales than one."""
        if self.stored.packing is Packing.BYTES or self.stored.is_single or not self._has_packed_zeros:
            return self._from_zero(self._of_all("weight_zero_point", shape, torch.int8), "weight_zero_point")
        words = -(-shape[0] * self.stored.bits // 32)
        zeros = self.parts.read("weight_zero_point", (words, shape[1]), torch.int32)
        return unpacked(zeros.T, self.stored.bits)[:, : shape[0]].T.contiguous()

    @property
    def _has_packed_zeros(self) -> bool:
        """Whether zeros are packed; older versions stored them in int8."""
        return self.parts.read("weight_zero_point", (None, None), torch.int8, torch.int32).dtype == torch.int32

    def _of_all(self, part: str, shape: tuple[int, int], *dtypes: torch.dtype) -> Tensor:
        """Return scales or zeros `[out, scales]`, of which there may be one for the whole weight."""
        if self.stored.is_single:
            return self.parts.read(part, (1,), *dtypes).expand(shape[0], 1).contiguous()
        return self.parts.read(part, shape, *dtypes)

    def _from_zero(self, signed: Tensor, part: str) -> Tensor:
        """Return signed numbers of int8 from 0 on."""
        numbers = signed.view(torch.uint8) + 2 ** (self.stored.bits - 1)
        if int(numbers.max()) >= 2**self.stored.bits:
            raise self.parts.damaged(part, f"has numbers of more than {self.stored.bits} bits")
        return numbers


_INDICES = (torch.int32, torch.int64)


def _sharing(stored: Integers, depth: int) -> tuple[int, int]:
    """Return how many scales a row has, and how many numbers share one."""
    shared = min(stored.group or depth, depth)
    return -(-depth // shared), shared


def _places(parts: Parts, part: str, stored: Integers, depth: int) -> Tensor | None:
    """Return the scale of each number of a row; None if they share scales in their order."""
    if not stored.has_places and part not in parts:
        return None
    places, (num_scales, shared) = parts.read(part, (depth,), *_INDICES), _sharing(stored, depth)
    if int(places.min()) < 0 or int(places.max()) >= num_scales:
        raise parts.damaged(part, f"has indices outside 0 to {num_scales - 1}")
    is_in_order = torch.equal(places, torch.arange(depth, dtype=places.dtype) // shared)
    return None if is_in_order else places.clone()


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Last words of the names of a weight's tensors."""

    numbers: str
    scales: str
    others: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return self.numbers, self.scales, *self.others


WEIGHT = "weight"

_IN_WORDS = Names(numbers="qweight", scales="scales", others=("qzeros", "g_idx"))
_COMPRESSED = Names(
    numbers="weight_packed", scales="weight_scale", others=("weight_zero_point", "weight_g_idx", "weight_shape")
)

NAMES: Mapping[Packing, Names] = MappingProxyType(
    {
        Packing.GPTQ: _IN_WORDS,
        Packing.GPTQ_V2: _IN_WORDS,
        Packing.AWQ: _IN_WORDS,
        Packing.PACKED: _COMPRESSED,
        Packing.BYTES: replace(_COMPRESSED, numbers=WEIGHT),
    }
)

PACKED_BY: Mapping[Packing, Callable[..., Packed]] = MappingProxyType(
    {
        Packing.GPTQ: GptqWeight,
        Packing.GPTQ_V2: GptqWeight,
        Packing.AWQ: AwqWeight,
        Packing.PACKED: CompressedWeight,
        Packing.BYTES: CompressedWeight,
    }
)
