"""Compile kernels, and find compiled ones in a cache on disk that all processes share."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import types

from kernels.cpu.runtime.memory import FASTMATH

_CPU_FOLDER = Path(__file__).resolve().parents[1]
_BESIDE = ("grouped_linear.py", "grouped_weight.py", "packed_linear.py")
"""Files beside the package that kernels, or the choice between them, are made of."""
SIGNATURE = types.void(types.CPointer(types.int64))
COMPILE_OPTIONS = {"fastmath": FASTMATH, "error_model": "numpy"}
_compile_lock = threading.Lock()
_COMPILE = """
import importlib, sys
from kernels.cpu.runtime.compilation import compile_cached
compile_cached(getattr(importlib.import_module(sys.argv[1]), sys.argv[2]))
"""


def compile_cached(function: Callable[[Any], None]) -> Any:
    """Compile a kernel, or load it from the disk cache.

    numba keys its cache by the entry function's file alone; the directory carries a digest of all files of this
    package and of those beside it that they use, so that a change in an inlined function is never missed.
    """
    directory = cache_directory()
    if directory is None:
        return numba.cfunc(SIGNATURE, **COMPILE_OPTIONS)(function)
    with _compile_lock:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(directory)
        try:
            return numba.cfunc(SIGNATURE, cache=True, **COMPILE_OPTIONS)(function)
        except (OSError, RuntimeError):  # disk full, directory removed: a cache must never stop the work
            return numba.cfunc(SIGNATURE, **COMPILE_OPTIONS)(function)
        finally:
            numba.config.CACHE_DIR = before


def compile_apart(function: Callable[[Any], None]) -> subprocess.Popen[bytes] | None:
    """Start to compile a kernel into the disk cache in another process; numba compiles one at a time in each.

    Return None if nothing is gained: it is cached, there is no cache, or only one core, which the two would share.
    """
    directory = cache_directory()
    if directory is None or _is_compiled(function, directory) or _num_cores() < 2:
        return None
    paths = [str(_CPU_FOLDER.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _COMPILE, function.__module__, function.__name__],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _is_compiled(function: Callable[[Any], None], directory: Path) -> bool:
    """Tell whether numba has an index for it; an index of another CPU is detected when the kernel is called."""
    return any(directory.glob(f"*/{function.__module__.rpartition('.')[2]}.{function.__name__}-*.nbi"))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def cache_directory() -> Path | None:
    """Return the directory of this version's compiled code and measurements; None if none can be created."""
    digest = _package_digest()
    for base in _cache_bases():
        directory = base / digest
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            return directory
    return None


def _cache_bases() -> list[Path]:
    configured = os.environ.get("NUMBA_CACHE_DIR")
    if configured:
        return [Path(configured) / "tokenmill"]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [_CPU_FOLDER / "__pycache__" / "numba", Path(home) / "tokenmill" / "numba"]


def _package_digest() -> str:
    digest = hashlib.sha256()
    beside = (_CPU_FOLDER.parent / name for name in _BESIDE)
    for path in (*sorted(_CPU_FOLDER.rglob("*.py")), *beside):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
