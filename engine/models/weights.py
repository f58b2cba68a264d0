"""Read tensors by name from a model's files, safetensors or GGUF, one or many, without loading them all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelLoadError
from engine.gguf.config import open_weights
from engine.gguf.container import is_gguf
from engine.models.dequantize import dequantize_fp8, dequantize_mxfp4
from engine.models.language_part import language_name
from engine.models.paths import described_by
from engine.models.quantization import Quantization, QuantMethod, Scaled

log = logging.getLogger(__name__)

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

# Suffixes of a weight's name. An FP8 weight is multiplied with its scales under either name: DeepSeek and transformers
# call them inverse, AutoFP8 and vLLM have one for the whole weight and do not.
_FP8_SCALES, _FP8_SCALE = "_scale_inv", "_scale"
_MXFP4_BLOCKS, _MXFP4_SCALES = "_blocks", "_scales"

_FP8_INPUT_SCALES = (".activation_scale", ".input_scale")
"""Names beside a weight for products in FP8, which are not used here."""


class Checkpoint:
    """Open a model's files for reading; use as a context manager. Quantized tensors are returned dequantized."""

    def __init__(
        self, path: Path, *, dtype: torch.dtype, quantization: Quantization | None = None, is_part: bool = False
    ) -> None:
        """With `is_part` the files hold more than a language model; tensors have its names."""
        self._path = path
        self._is_part = is_part
        self._dtype = dtype
        self._quantization = quantization
        self._stack = ExitStack()
        self._file_of: dict[str, _Place] = {}

    def __enter__(self) -> Checkpoint:
        with ExitStack() as stack:
            for file in _opened(self._path, stack):
                for name in file.names:
                    plain = language_name(name) if self._is_part else name
                    if plain is not None:
                        self._file_of[plain] = _Place(file, name)
            self._stack = stack.pop_all()
        if self._method is QuantMethod.FP8 and not any(map(self._is_scale, self._file_of)):
            log.warning(
                "%s has fp8 in quantization_config but no weight has scales: all are read as they are stored; remove "
                "quantization_config if they were dequantized before",
                self._path / "config.json",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._stack.close()
        else:  # other threads may still be reading, so the files close when the last reference goes
            self._stack.pop_all()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one tensor on the CPU in `dtype`. Raises ModelLoadError if it is missing or has another shape."""
        tensor = self.whole(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"{self._path}: tensor {name} has shape {tuple(tensor.shape)}, {described_by(self._path)} says {shape}."
            )
        return tensor.to(self._dtype)

    def tensors(self) -> dict[str, StoredTensor]:
        """Return every tensor by its name in the unquantized model; threads may read them."""
        return {name: StoredTensor(self, name) for name in self._whole_names()}

    def whole(self, name: str) -> Tensor:
        """Return one tensor on the CPU as it is stored, a quantized one in a dtype that represents its values.

        Raises ModelLoadError if it is missing, or not quantized as config.json says.
        """
        if self._method is QuantMethod.MXFP4 and name + _MXFP4_BLOCKS in self:
            return self._from_mxfp4(name)
        if self._method is QuantMethod.FP8 and (name + _FP8_SCALES in self or name + _FP8_SCALE in self):
            return self._from_fp8(name)
        return self._unquantized(name)

    def _from_mxfp4(self, name: str) -> Tensor:
        blocks, scales = self._stored(name + _MXFP4_BLOCKS), self._stored(name + _MXFP4_SCALES)
        return dequantize_mxfp4(blocks, scales, self._described(name))

    def _from_fp8(self, name: str) -> Tensor:
        assert self._quantization is not None, "FP8 is a quantization"
        where, scaled = name + _FP8_SCALES, self._quantization.scaled
        if where not in self:
            said_by = f"{name + _FP8_SCALE} has it, {where} has those of blocks"
            where, scaled = name + _FP8_SCALE, Scaled(block=None, said_by=said_by)
        return dequantize_fp8(self._stored(name), self._stored(where), self._described(name), scaled=scaled)

    def _unquantized(self, name: str) -> Tensor:
        tensor = self._stored(name)
        if tensor.dtype.itemsize == 1 and tensor.dtype != torch.bool:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelLoadError(f"{self._described(name)} is {kind} without scales{self._missing_scales(name)}.")
        return tensor

    def _missing_scales(self, name: str) -> str:
        """Continue an error after "without scales" with the names that were looked for."""
        if self._method is not QuantMethod.FP8:
            return " that the quantization_config of config.json requires; the weights do not belong to it"
        module = name.removesuffix(name.rpartition(".")[2])
        others = (other for other in sorted(self._file_of) if other.startswith(module) and "scale" in other)
        scale = next((f"only {other}" for other in others if not self._is_scale(other)), "neither")
        return f"; they are read from {name + _FP8_SCALES} or {name + _FP8_SCALE}, and there is {scale}"

    def _described(self, name: str) -> str:
        return f"{self._path}: tensor {name}"

    @property
    def _method(self) -> QuantMethod | None:
        return None if self._quantization is None else self._quantization.method

    def _whole_names(self) -> Iterator[str]:
        for name in self._file_of:
            if not self._is_scale(name):
                yield name.removesuffix(_MXFP4_BLOCKS) if self._method is QuantMethod.MXFP4 else name

    def _is_scale(self, name: str) -> bool:
        if self._method is QuantMethod.MXFP4:
            return name.endswith(_MXFP4_SCALES)
        if self._method is QuantMethod.FP8:
            is_one = name.endswith(_FP8_SCALE) and name.removesuffix(_FP8_SCALE) in self
            return is_one or name.endswith((_FP8_SCALES, *_FP8_INPUT_SCALES))
        return False

    def _stored(self, name: str) -> Tensor:
        if name not in self:
            raise ModelLoadError(
                f"{self._path} has no tensor {name}; the weights do not belong to its {described_by(self._path)}."
            )
        place = self._file_of[name]
        return place.file.read(place.name)


def tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors in a model's files. Raises ModelLoadError if there are no files."""
    with ExitStack() as stack:
        return [name for file in _opened(path, stack) for name in file.names]


@dataclass(frozen=True, slots=True)
class _Place:
    """File and name of a stored tensor."""

    file: _NamedTensors
    name: str
    """Its name in the file."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of an open checkpoint; `[...]`, transformers' way to read one from a file, reads it."""

    checkpoint: Checkpoint
    name: str

    def __getitem__(self, everything: EllipsisType) -> Tensor:
        """Return the whole tensor, like `Checkpoint.whole`."""
        return self.checkpoint.whole(self.name)


class _NamedTensors(Protocol):
    """An open file of tensors."""

    names: list[str]

    def read(self, name: str) -> Tensor:
        """Return one of its tensors on the CPU, as it is stored or in a dtype that represents its values."""
        ...


class _File:
    """A safetensors file that is open until `stack` closes; it alone knows its tensors."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        try:
            self._opened = stack.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{path} cannot be read as safetensors: {error}.") from error
        self.names: list[str] = self._opened.keys()

    def read(self, name: str) -> Tensor:
        """Return one of its tensors. Raises ModelLoadError if torch lacks its dtype, or the disk fails."""
        try:
            tensor: Tensor = self._opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{self._path}: tensor {name} cannot be read: {error}.") from error
        return tensor


def _opened(path: Path, stack: ExitStack) -> Iterator[_NamedTensors]:
    if is_gguf(path):
        yield open_weights(path)
    else:
        yield from (_File(file, stack) for file in _files(path))


def _files(path: Path) -> list[Path]:
    """Return a directory's files as transformers chooses them; the last of two files with the same tensor counts."""
    if (path / _SINGLE).is_file():
        return [path / _SINGLE]
    if not (path / _INDEX).is_file():
        raise ModelLoadError(f"{path} has no {_SINGLE} and no {_INDEX}; only safetensors weights are read.")
    try:
        weight_map = json.loads((path / _INDEX).read_text())["weight_map"]
        files = sorted({path / file for file in weight_map.values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{path / _INDEX} has no readable weight_map: {error}.") from error
    for file in files:
        if not file.is_file():
            raise ModelLoadError(f"{file} is missing, though {_INDEX} names it; copy the whole model directory.")
    return files
