"""Read tensors by name from a model's files, safetensors or GGUF, one or many, without loading them all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType, TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelLoadError
from engine.gguf.config import open_weights
from engine.gguf.container import is_gguf
from engine.gguf.weights import GgufWeights
from engine.models.language_part import language_name
from engine.models.paths import described_by
from engine.quantized.quantization import Quantization
from engine.quantized.weights import quantized_weights
from kernels.grouped_weight import GroupedWeight, Layout

log = logging.getLogger(__name__)

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_MOST_MAPPED_BYTES = 64 * 2**20
"""Bytes that are read of a file before it is mapped anew; what was mapped goes with the last tensor of it."""


class Checkpoint:
    """Open a model's files for reading; use as a context manager.

    Quantized tensors are dequantized by `read` and `whole`, and stay packed in `read_grouped` if they have a `layout`.
    """

    def __init__(
        self, path: Path, *, dtype: torch.dtype, quantization: Quantization | None = None, is_part: bool = False
    ) -> None:
        """With `is_part` the files hold more than a language model; tensors have its names."""
        self._path = path
        self._is_part = is_part
        self._dtype = dtype
        self._method = None if quantization is None else quantization.method
        self._quantized = None if quantization is None else quantized_weights(quantization, self)
        self._file_of: dict[str, _Place] = {}

    def __enter__(self) -> Checkpoint:
        for file in _opened(self._path):
            for name in file.names:
                plain = language_name(name) if self._is_part else name
                if plain is not None:
                    self._file_of[plain] = _Place(file, name)
        if self._quantized is None:
            return self
        self._quantized.check(self._file_of)
        if not any(name in self._quantized for name in self._whole_names()):
            log.warning(
                "%s has %s in quantization_config but no weight has scales: all are read as they are stored; remove "
                "quantization_config if they were dequantized before",
                self._path / "config.json",
                self._method,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:  # otherwise threads may still be reading
            self._file_of.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one tensor on the CPU in `dtype`. Raises ModelLoadError if it is missing or has another shape."""
        tensor = self.whole(name)
        self._check_shape(name, tuple(tensor.shape), shape)
        return tensor.to(self._dtype)

    def _check_shape(self, name: str, actual: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if actual != shape:
            raise ModelLoadError(
                f"{self._path}: tensor {name} has shape {actual}, {described_by(self._path)} says {shape}."
            )

    def layout(self, name: str) -> Layout | None:
        """Return how a tensor stays packed in memory; None if it is missing or has to be read whole."""
        if self._quantized is not None and name in self._quantized:
            return self._quantized.layout(name)
        place = self._file_of.get(name)
        return place.file.layout(place.name) if place is not None and isinstance(place.file, GgufWeights) else None

    def read_grouped(self, name: str, shape: tuple[int, int]) -> GroupedWeight:
        """Return a tensor that has a layout. Raises ModelLoadError if it has another shape."""
        weight = self._grouped(name)
        self._check_shape(name, weight.shape, shape)
        return weight

    def _grouped(self, name: str) -> GroupedWeight:
        if self._quantized is not None:
            return self._quantized.read_grouped(name)
        place = self._file_of[name]
        assert isinstance(place.file, GgufWeights), "tensors that are not quantized have no layout"
        return place.file.read_grouped(place.name)

    def tensors(self) -> dict[str, StoredTensor]:
        """Return every tensor by its name in the unquantized model; threads may read them."""
        return {name: StoredTensor(self, name) for name in self._whole_names()}

    def whole(self, name: str) -> Tensor:
        """Return one tensor on the CPU as it is stored, a quantized one in a dtype that represents its values.

        Raises ModelLoadError if it is missing, or not quantized as config.json says.
        """
        if self._quantized is not None and name in self._quantized:
            return self._quantized.read(name)
        return self._unquantized(name)

    def _unquantized(self, name: str) -> Tensor:
        tensor = self.stored(name)
        if tensor.dtype.itemsize == 1 and tensor.dtype != torch.bool:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelLoadError(f"{self.described(name)} is {kind} without scales{self._missing_scales(name)}.")
        return tensor

    def _missing_scales(self, name: str) -> str:
        """Continue an error after "without scales" with the names that were looked for."""
        names = () if self._quantized is None else self._quantized.scale_names(name)
        if not names:
            return " that the quantization_config of config.json requires; the weights do not belong to it"
        module = name.removesuffix(name.rpartition(".")[2])
        others = (other for other in sorted(self._file_of) if other.startswith(module) and "scale" in other)
        scale = next((f"only {other}" for other in others if self._whole_name(other) is not None), "neither")
        return f"; they are read from {' or '.join(names)}, and there is {scale}"

    def described(self, name: str) -> str:
        """Return the model and the name of a tensor, for errors."""
        return f"{self._path}: tensor {name}"

    def _whole_names(self) -> Iterator[str]:
        for name in self._file_of:
            whole = self._whole_name(name)
            if whole is not None:
                yield whole

    def _whole_name(self, name: str) -> str | None:
        return name if self._quantized is None else self._quantized.whole_name(name)

    def stored(self, name: str) -> Tensor:
        """Return a tensor as it is stored, on the CPU; it may be a view of its file. Raises ModelLoadError."""
        if name not in self:
            raise ModelLoadError(
                f"{self._path} has no tensor {name}; the weights do not belong to its {described_by(self._path)}."
            )
        place = self._file_of[name]
        return place.file.read(place.name)


def tensor_names(path: Path) -> list[str]:
    """Return the names of the tensors in a model's files. Raises ModelLoadError if there are no files."""
    return [name for file in _opened(path) for name in file.names]


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
    """A safetensors file; it alone knows its tensors, which are views of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = self._open()
        self._num_read_bytes = 0
        self.names: list[str] = self._opened.keys()

    def read(self, name: str) -> Tensor:
        """Return one of its tensors. Raises ModelLoadError if torch lacks its dtype, or the disk fails."""
        if self._num_read_bytes > _MOST_MAPPED_BYTES:  # so that the memory of what was read is free again
            self._opened, self._num_read_bytes = self._open(), 0
        try:
            tensor: Tensor = self._opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{self._path}: tensor {name} cannot be read: {error}.") from error
        self._num_read_bytes += tensor.nbytes
        return tensor

    def _open(self) -> Any:
        try:
            return safe_open(self._path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{self._path} cannot be read as safetensors: {error}.") from error


def _opened(path: Path) -> Iterator[_NamedTensors]:
    if is_gguf(path):
        yield open_weights(path)
    else:
        yield from (_File(file) for file in _files(path))


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
