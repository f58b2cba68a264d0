"""The import of Triton: op files take `jit`, `tl` and `cdiv` from here.

Triton has wheels for Linux only. Elsewhere the op files must still import, for their CPU path; there `jit` leaves a
kernel as an ordinary function, which is never called because no CUDA tensor can exist.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

HAS_TRITON = importlib.util.find_spec("triton") is not None

triton: Any = None
tl: Any = None
if HAS_TRITON:
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")


def jit(function: Any, *, varying: tuple[str, ...] = ()) -> Any:
    """Compile `function` as a Triton kernel, lazily; return it unchanged if Triton is not installed.

    Triton compiles one variant for an integer that is 1 and one for multiples of 16. The `varying` arguments, which
    differ from step to step, are exempt: each variant would stop a step for as long as compiling takes.
    """
    return triton.jit(function, do_not_specialize=varying) if HAS_TRITON else function


def launch(kernel: Any, grid: tuple[int, ...]) -> Any:
    """Prepare `kernel` for a call over `grid`, with fused multiply-adds: Triton 3.10 turns them off by default."""
    return functools.partial(kernel[grid], enable_fp_fusion=True)


def next_power_of_2(number: int) -> int:
    """Round up to a power of two: the only lengths `tl.arange` accepts."""
    return 1 << max(number - 1, 0).bit_length()
