"""The ops on a CPU, compiled by numba and LLVM; what the engine may use of them is named here and nowhere else.

Knows torch's threads and memory: no Triton, no layer, no model.
"""

from __future__ import annotations

from kernels.cpu.attention.host import begin_to_compile_attention
from kernels.cpu.kv_ops import DTYPES
from kernels.cpu.runtime.huge_pages import zeros
from kernels.cpu.runtime.launch import Recording, record
from kernels.cpu.runtime.program import CpuProgram, can_run

__all__ = ["DTYPES", "CpuProgram", "Recording", "begin_to_compile_attention", "can_run", "record", "zeros"]
