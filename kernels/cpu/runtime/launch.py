"""Run a numba-compiled kernel over independent tasks on the OpenMP threads that torch uses.

numba's own parallel layers would start a second thread pool beside torch's (its `omppool` loads another libgomp, and
`workqueue` must not be called from two threads), and each pool's spinning workers take the cores from the other. So a
kernel is compiled as a C function that takes tasks from an atomic counter, and `GOMP_parallel`, the documented entry
point of the OpenMP library that torch has loaded, runs it on torch's pool, with torch's number of threads. Calls from
several Python threads are safe. Without that symbol (macOS, Windows) the kernel runs on the calling thread.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.runtime.block import FAULT, Block
from kernels.cpu.runtime.compilation import compile_apart, compile_cached


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A kernel call that was recorded instead of run: the arguments of `CpuKernel.__call__`."""

    kernel: CpuKernel
    num_tasks: int
    words: tuple[float, ...]
    parallel: bool


@dataclass(slots=True, kw_only=True)
class Recording:
    """Kernel calls in order, and the tensors that they will write, kept alive as long as this is."""

    calls: list[RecordedCall] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


class _Thread(threading.local):
    recording: Recording | None = None


_thread = _Thread()


@contextmanager
def record() -> Iterator[Recording]:
    """Record this thread's kernel calls instead of running them (program.py runs them).

    The ops return tensors that are not filled yet, and report no fault.
    """
    assert _thread.recording is None
    _thread.recording = Recording()
    try:
        yield _thread.recording
    finally:
        _thread.recording = None


def keep(tensor: Tensor) -> Tensor:
    """Return a tensor that a kernel will fill; while this thread records, the recording holds it."""
    if _thread.recording is not None:
        _thread.recording.outputs.append(tensor)
    return tensor


class CpuKernel:
    """One kernel: a numba-compilable function of a parameter block (a pointer to int64 words).

    The function loops `task = fetch_add(p, 1)` while `task < p[NUM_TASKS]`, reads its own words as `p[block.at.name]`
    and sets `p[FAULT]` if an index is out of range. Compiled at the first call, and cached on disk if a directory is
    writable.
    """

    def __init__(self, function: Callable[[Any], None], block: Block) -> None:
        self.block = block
        self._function = function
        self._blocks = threading.local()
        self._compiler: subprocess.Popen[bytes] | None = None
        self._entry: Any = None
        self._address = 0

    def begin_to_compile(self) -> None:
        """Compile it in another process, if that helps; the first call waits for it."""
        if self._entry is None and self._compiler is None:
            self._compiler = compile_apart(self._function)
            if self._compiler is not None:  # if the kernel is never called, the process must not stay a zombie
                threading.Thread(target=self._compiler.wait, daemon=True).start()

    def __call__(self, num_tasks: int, words: tuple[float, ...], *, parallel: bool) -> bool:
        """Run all tasks; return whether an index was out of range. Blocks until done; releases the GIL.

        `words` are the kernel's own in the declared order. Inside `record` nothing runs and the result is False.
        """
        if _thread.recording is not None:
            call = RecordedCall(kernel=self, num_tasks=num_tasks, words=words, parallel=parallel)
            _thread.recording.calls.append(call)
            return False
        if self._entry is None:
            self.compile()
        try:
            block, address = self._blocks.block
        except AttributeError:
            block = ctypes.create_string_buffer(self.block.size_bytes)
            address = ctypes.addressof(block)
            self._blocks.block = block, address
        self.block.write(block, 0, num_tasks, words)
        team = _openmp_parallel() if parallel else None
        num_threads = min(torch.get_num_threads(), num_tasks)
        if team is None or num_threads < 2:
            self._entry(address)
        else:
            team(self._address, address, num_threads, 0)
        return ctypes.c_int64.from_address(address + 8 * FAULT).value != 0

    @property
    def address(self) -> int:
        """The address of the compiled C function, void (int64 *parameter_block)."""
        if self._entry is None:
            self.compile()
        return self._address

    @property
    def is_compiled(self) -> bool:
        """Whether it can run without compiling."""
        return self._entry is not None

    @property
    def is_compiled_apart(self) -> bool:
        """Whether another process is compiling it, so that `compile` would wait."""
        return self._compiler is not None

    def compile(self) -> None:
        """Compile it, or load what another process has compiled."""
        compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.wait()  # whatever the outcome: what is not in the cache is compiled here
        compiled = compile_cached(self._function)
        self._address = compiled.address
        self._entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)


def compile_all(kernels: Iterable[CpuKernel]) -> None:
    """Compile those that are not: last those that another process compiles, so that the others do not wait for it."""
    for kernel in sorted((one for one in kernels if not one.is_compiled), key=lambda one: one.is_compiled_apart):
        if not kernel.is_compiled:  # it may be listed twice
            kernel.compile()


@functools.cache
def _openmp_parallel() -> Any:
    libraries = [None, *sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))]
    for library in libraries:
        try:
            parallel = ctypes.CDLL(None if library is None else str(library)).GOMP_parallel
        except (AttributeError, OSError, TypeError):  # no such symbol, not loadable, no global namespace (Windows)
            continue
        parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        parallel.restype = None
        return parallel
    return None
