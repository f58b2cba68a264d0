"""The quantized weights of a checkpoint by the names that they have in the unquantized model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.quantized.floats import dequantize_fp8, dequantize_mxfp4
from engine.quantized.packings import NAMES, PACKED_BY, WEIGHT, Packed
from engine.quantized.quantization import Integers, Packing, Quantization, QuantMethod, Scaled
from engine.quantized.stored import Parts, Tensors
from kernels.grouped_weight import GroupedWeight, Layout


class QuantizedWeights(Protocol):
    """Reads weights of one format; those that a checkpoint does not quantize are not its."""

    def __contains__(self, name: str) -> bool:
        """Tell whether a weight is quantized."""
        ...

    def whole_name(self, stored: str) -> str | None:
        """Return the weight whose values a tensor holds, quantized or not; None for scales and the like."""
        ...

    def scale_names(self, name: str) -> tuple[str, ...]:
        """Return what the scales of a weight may be called, for errors; none if its values have another name, too."""
        ...

    def read(self, name: str) -> Tensor:
        """Return a weight in a dtype that has all its values. Raises ModelLoadError if its tensors do not fit."""
        ...

    def layout(self, name: str) -> Layout | None:
        """Return how a weight stays packed; None if it has to be read whole. Raises ModelLoadError like `read`."""
        ...

    def read_grouped(self, name: str) -> GroupedWeight:
        """Return a weight that has a layout. Raises ModelLoadError like `read`."""
        ...

    def check(self, names: Iterable[str]) -> None:
        """Raise UnsupportedModelError if answers would be wrong without a tensor that is not read."""
        ...


def quantized_weights(quantization: Quantization, tensors: Tensors) -> QuantizedWeights:
    """Return the weights that `tensors` hold in a format."""
    if isinstance(quantization.stored, Integers):
        return _IntegerWeights(quantization.stored, tensors)
    if quantization.method is QuantMethod.MXFP4:
        return _Mxfp4Weights(tensors)
    return _FloatWeights(quantization, tensors)


_ACTIVATIONS = frozenset(
    f"{of}_{part}" for of in ("input", "output", "q", "k", "v") for part in ("scale", "zero_point")
) | {"activation_scale"}
"""Last words of the names of tensors for rounded activations, which are not used here."""


class _IntegerWeights:
    """Weights of whole numbers."""

    def __init__(self, stored: Integers, tensors: Tensors) -> None:
        self._stored, self._tensors, self._names = stored, tensors, NAMES[stored.packing]

    def __contains__(self, name: str) -> bool:
        module, _, last = name.rpartition(".")
        if last != WEIGHT or f"{module}.{self._names.numbers}" not in self._tensors:
            return False
        return self._names.numbers != WEIGHT or f"{module}.{self._names.scales}" in self._tensors

    def whole_name(self, stored: str) -> str | None:
        module, _, last = stored.rpartition(".")
        if last == self._names.numbers:
            return f"{module}.{WEIGHT}"
        is_part = last in self._names.all and f"{module}.{self._names.numbers}" in self._tensors
        return None if is_part or last in _ACTIVATIONS else stored

    def scale_names(self, name: str) -> tuple[str, ...]:
        return (f"{name.rpartition('.')[0]}.{self._names.scales}",)

    def read(self, name: str) -> Tensor:
        weight = self._weight(name)
        return weight.scales().widened(weight.numbers())

    def layout(self, name: str) -> Layout | None:
        return self._weight(name).scales().layout

    def read_grouped(self, name: str) -> GroupedWeight:
        weight = self._weight(name)
        return weight.scales().packed(weight.numbers())

    def check(self, names: Iterable[str]) -> None:
        """Refuse AutoAWQ's ScaledActivation: weights behind it are multiplied by scales that it divides rows by."""
        if self._stored.packing is not Packing.AWQ:
            return
        scales = (name for name in names if name.endswith(f".{self._names.scales}"))
        scaled = next((name for name in scales if not self._has_numbers(name.rpartition(".")[0])), None)
        if scaled is not None:
            raise UnsupportedModelError(
                f"{self._tensors.described(scaled)} scales activations (AutoAWQ's ScaledActivation), which the engine "
                f"does not. Use weights quantized with {QuantMethod.GPTQ} or {QuantMethod.COMPRESSED_TENSORS}, or "
                "unquantized ones."
            )

    def _has_numbers(self, module: str) -> bool:
        return any(f"{module}.{part}" in self._tensors for part in (self._names.numbers, *self._names.others))

    def _weight(self, name: str) -> Packed:
        parts = Parts(tensors=self._tensors, module=name.rpartition(".")[0], kind=str(self._stored))
        return PACKED_BY[self._stored.packing](parts=parts, stored=self._stored)


class _Widened:
    """Weights that have no layout."""

    def layout(self, name: str) -> Layout | None:
        return None

    def read_grouped(self, name: str) -> GroupedWeight:
        raise AssertionError(f"{name} has no layout")

    def check(self, names: Iterable[str]) -> None:
        """Refuse nothing: what is not read would only round activations."""


class _FloatWeights(_Widened):
    """Weights of 8-bit floats, with scales in a tensor that has their name and `_scale_inv` or `_scale`.

    DeepSeek and transformers call the scales of blocks inverse; AutoFP8 and vLLM have one for the whole weight, and
    compressed-tensors any, and do not. Weights are multiplied with them under either name.
    """

    def __init__(self, quantization: Quantization, tensors: Tensors) -> None:
        assert isinstance(quantization.stored, Scaled)
        self._scaled, self._tensors = quantization.stored, tensors
        self._is_named = quantization.method is QuantMethod.COMPRESSED_TENSORS

    def __contains__(self, name: str) -> bool:
        return any(scales in self._tensors for scales in self.scale_names(name))

    def whole_name(self, stored: str) -> str | None:
        is_one = stored.endswith(_SCALE) and stored.removesuffix(_SCALE) in self._tensors
        is_part = is_one or stored.endswith(_SCALES) or stored.rpartition(".")[2] in _ACTIVATIONS
        return None if is_part else stored

    def scale_names(self, name: str) -> tuple[str, ...]:
        return (name + _SCALE,) if self._is_named else (name + _SCALES, name + _SCALE)

    def read(self, name: str) -> Tensor:
        where, scaled = next(scales for scales in self.scale_names(name) if scales in self._tensors), self._scaled
        if where == name + _SCALE and not self._is_named:
            scaled = Scaled(block=None, said_by=f"{where} has it, {name + _SCALES} has those of blocks")
        weight, scales = self._tensors.stored(name), self._tensors.stored(where)
        return dequantize_fp8(weight, scales, self._tensors.described(name), scaled=scaled)


_SCALES, _SCALE = "_scale_inv", "_scale"


class _Mxfp4Weights(_Widened):
    """Experts of 4-bit floats, with an exponent for 32 of them."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name + _MXFP4_BLOCKS in self._tensors

    def whole_name(self, stored: str) -> str | None:
        return None if stored.endswith(_MXFP4_SCALES) else stored.removesuffix(_MXFP4_BLOCKS)

    def scale_names(self, name: str) -> tuple[str, ...]:
        return ()

    def read(self, name: str) -> Tensor:
        blocks, scales = self._tensors.stored(name + _MXFP4_BLOCKS), self._tensors.stored(name + _MXFP4_SCALES)
        return dequantize_mxfp4(blocks, scales, self._tensors.described(name))


_MXFP4_BLOCKS, _MXFP4_SCALES = "_blocks", "_scales"
