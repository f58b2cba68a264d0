"""Read tensors by name from a model directory's safetensors files, one or many, without loading them all.

Knows names, shapes and dtypes; not what a tensor is for.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelLoadError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """Open a model's safetensors files for reading; use as a context manager. Tensors come out in `dtype`."""

    def __init__(self, path: Path, *, dtype: torch.dtype) -> None:
        self._path = path
        self._dtype = dtype
        self._stack = ExitStack()
        self._file_of = _files_by_tensor(path)
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one tensor on the CPU. Raises ModelLoadError when it is missing or has another shape."""
        if name not in self._file_of:
            raise ModelLoadError(f"{self._path} has no tensor {name}; the weights do not belong to its config.json.")
        tensor: Tensor = self._file(self._file_of[name]).get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(
                f"{self._path}: tensor {name} has shape {tuple(tensor.shape)}, config.json says {shape}."
            )
        return tensor.to(self._dtype)

    def _file(self, path: Path) -> Any:
        if path not in self._open:
            try:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(f"{path} cannot be read as safetensors: {error}.") from error
        return self._open[path]


def check_files(path: Path) -> None:
    """Raise ModelLoadError when the directory's safetensors are missing, incomplete or unreadable."""
    _files_by_tensor(path)


def _files_by_tensor(path: Path) -> dict[str, Path]:
    if (path / _INDEX).is_file():
        try:
            names = json.loads((path / _INDEX).read_text())["weight_map"]
        except (ValueError, KeyError) as error:
            raise ModelLoadError(f"{path / _INDEX} has no readable weight_map: {error}.") from error
        files = {name: path / file for name, file in names.items()}
        for file in set(files.values()):
            if not file.is_file():
                raise ModelLoadError(f"{file} is missing, though {_INDEX} names it; copy the whole model directory.")
        return files
    if not (path / _SINGLE).is_file():
        raise ModelLoadError(f"{path} has no {_SINGLE} and no {_INDEX}; only safetensors weights are read.")
    try:
        with safe_open(path / _SINGLE, framework="pt") as file:
            return dict.fromkeys(file.keys(), path / _SINGLE)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{path / _SINGLE} cannot be read as safetensors: {error}.") from error
