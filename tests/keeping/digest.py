"""Digests of everything that a test's result depends on: its files, the installed packages, the processor."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

_CHOICES = (
    *("ATEN_", "CUDA_", "DNNL_", "GOMP_", "HF_", "KMP_", "MKL_", "NUMBA_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("TOKENMILL_", "TORCH", "TRITON_"),
)
"""Prefixes of the environment variables that affect computations."""
_PLACE = "TOKENMILL_KEPT_TESTS"
_DRIVER = Path("/proc/driver/nvidia/version")
_DEVICES = Path("/proc/driver/nvidia/gpus")
_PROCESSOR = Path("/proc/cpuinfo")
_OF_A_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features")


def store_folder() -> Path:
    """Return the folder of kept results: that of an environment variable, or one in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get(_PLACE) or cache / "tokenmill" / "kept-tests")


class Digests:
    """Makes digests of sets of files; each file is read once."""

    def __init__(self, root: Path, *more: str) -> None:
        """Take further texts that are part of every digest."""
        self._root, self._more = root, more
        self._of_files: dict[Path, str] = {}

    def of(self, files: Iterable[Path]) -> str:
        """Return the digest of files by their paths and contents."""
        whole = hashlib.sha256("\0".join(self._more).encode())
        for path in sorted(files):
            whole.update(f"\0{path.relative_to(self._root)}\0{self._of_file(path)}".encode())
        return whole.hexdigest()

    def _of_file(self, path: Path) -> str:
        if path not in self._of_files:
            self._of_files[path] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._of_files[path]


def stamp_of(files: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Return a stamp that changes when a file is written; much faster than a digest."""
    return tuple((str(path), *_times(path)) for path in sorted(files))


def _times(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def surroundings() -> str:
    """Return what results depend on besides files: Python, packages, processor, driver, selected variables."""
    return "\n".join((sys.version, platform.machine(), *_flags(), *_packages(), *_processor(), *_chosen()))


def _flags() -> Iterator[str]:
    """Yield Python's flags, except the one for writing compiled modules, which affects no result."""
    names = ("optimize", "dev_mode", "utf8_mode", "hash_randomization", "bytes_warning", "int_max_str_digits")
    yield from (f"{name}={getattr(sys.flags, name)}" for name in names)


@cache
def _packages() -> tuple[str, ...]:
    """Return names and versions of all packages, including those that `scripts/real-model` installs elsewhere."""
    places = [*sys.path, *(str(path) for path in Path(sys.prefix).iterdir() if path.is_dir())]
    return tuple(sorted({f"{found.name} {found.version}" for found in distributions(path=places)}))


def _processor() -> Iterator[str]:
    lines = _PROCESSOR.read_text().splitlines() if _PROCESSOR.exists() else []
    yield from sorted({line for line in lines if line.partition("\t")[0].strip() in _OF_A_PROCESSOR})
    yield f"{len(os.sched_getaffinity(0))} cores"
    yield _DRIVER.read_text() if _DRIVER.exists() else "no driver"
    yield from sorted(path.read_text() for path in _DEVICES.glob("*/information"))


def _chosen() -> Iterator[str]:
    names = (name for name in sorted(os.environ) if name.startswith(_CHOICES) and name != _PLACE)
    yield from (f"{name}={os.environ[name]}" for name in names)
