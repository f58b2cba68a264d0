"""The ops on a CPU, compiled by numba and LLVM; this file lists what the engine may use of them.

Names are loaded on first use, so that a process that only compiles a kernel loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.cpu.attention.host import begin_to_compile_attention
    from kernels.cpu.kv_ops import DTYPES
    from kernels.cpu.runtime.huge_pages import zeros
    from kernels.cpu.runtime.launch import Recording, record
    from kernels.cpu.runtime.program import CpuProgram, can_run

_HOME = {
    "DTYPES": "kv_ops",
    "CpuProgram": "runtime.program",
    "Recording": "runtime.launch",
    "begin_to_compile_attention": "attention.host",
    "can_run": "runtime.program",
    "record": "runtime.launch",
    "zeros": "runtime.huge_pages",
}

__all__ = ["DTYPES", "CpuProgram", "Recording", "begin_to_compile_attention", "can_run", "record", "zeros"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
