"""The tensors that hold a quantized weight, each checked before it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import ModelLoadError


class Tensors(Protocol):
    """A checkpoint's tensors by name, as they are stored."""

    def __contains__(self, name: str) -> bool: ...

    def stored(self, name: str) -> Tensor:
        """Return a tensor on the CPU, which may be a view of its file. Raises ModelLoadError if there is none."""
        ...

    def described(self, name: str) -> str:
        """Return the model and the name of a tensor, for errors."""
        ...


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The tensors of one weight, by the last words of their names."""

    tensors: Tensors
    module: str
    """The beginning of their names."""
    kind: str
    """What the weight should be, for errors."""

    def __contains__(self, part: str) -> bool:
        return f"{self.module}.{part}" in self.tensors

    def read(self, part: str, shape: tuple[int | None, ...], *dtypes: torch.dtype) -> Tensor:
        """Return a tensor of one of the dtypes and a shape whose sizes may be None: any.

        Raises ModelLoadError if there is none, or it is another.
        """
        tensor = self.tensors.stored(f"{self.module}.{part}")
        sizes = tuple(tensor.shape)
        fits = len(sizes) == len(shape) and all(
            size > 0 and expected in (None, size) for size, expected in zip(sizes, shape, strict=True)
        )
        if not fits or tensor.dtype not in dtypes:
            expected = f"{' or '.join(map(_name, dtypes))} [{', '.join('any' if n is None else str(n) for n in shape)}]"
            raise self.damaged(part, f"is {described(tensor)}; {self.kind} has {expected}")
        return tensor

    def damaged(self, part: str, problem: str) -> ModelLoadError:
        """Return the error for a tensor."""
        return ModelLoadError(f"{self.tensors.described(f'{self.module}.{part}')} {problem}.")


def described(tensor: Tensor) -> str:
    """Return dtype and shape of a tensor, for errors."""
    return f"{_name(tensor.dtype)} {list(tensor.shape)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
