"""Keep a choice in a small file of the cache directory, so that a restart chooses the same.

A row's bits depend on what multiplied it, and a second measurement may give another choice. So the first choice for
these weights, machine, sources and torch applies to all processes that find its file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numba
import torch
from numba.core import codegen

from kernels.choice.weighing import Choice, WeightShape
from kernels.packed_linear import Product

if sys.platform != "win32":
    import fcntl

_LOCK_SECONDS = 20.0
"""Time for another process to compile and measure; after it this one measures for itself."""

_POLL_SECONDS = 0.02
_FEATURES = ("CPU_NAME", "CPU_FEATURES")
_ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


def keep(
    folder: Path,
    shapes: Sequence[WeightShape],
    choose: Callable[[], Choice],
    *,
    is_usable: Callable[[Product], bool] = lambda _: True,
) -> tuple[Choice, bool]:
    """Return the choice that is kept for these weights, else the result of `choose`; and whether it was kept before.

    Processes that start together wait for the first and take its choice. A file that is unreadable, belongs to other
    weights or another machine, or names an unusable product is rewritten; if no file can be written, the choice is this
    process's own.
    """
    weights = [[shape.width, shape.depth, shape.is_in_layers, shape.has_steps, str(shape.layout)] for shape in shapes]
    about = {"machine": machine(), "weighed_by": weighed_by(), "weights": weights}
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"products-{name}.json"

    def kept() -> Choice | None:
        kept_choice = _read(path, about, shapes)
        return kept_choice if kept_choice is not None and all(map(is_usable, kept_choice.values())) else None

    kept_choice = kept()
    if kept_choice is not None:
        return kept_choice, True
    with _locked(path.with_suffix(".lock")):
        kept_choice = kept()
        if kept_choice is None:
            choice = choose()
            kept_choice = kept()  # of another process that did not wait for this one, or had no lock
            if kept_choice is None:
                with suppress(OSError):  # a full disk must not stop the work
                    _write(path, about | {"products": [choice[shape] for shape in shapes]})
                return choice, False
    return kept_choice, True


@functools.cache
def machine() -> dict[str, Any]:
    """Return what the times of products depend on: the CPU, and its compiler."""
    return {
        "cpu": _cpu_model(),
        "features": codegen.get_host_cpu_features(),
        "compiled_for": [getattr(numba.config, name) for name in _FEATURES],
        "limited_to": [os.environ.get(name) for name in _ISA_VARIABLES],
        "torch": torch.__version__,
        "numba": numba.__version__,
    }


@functools.cache
def weighed_by() -> str:
    """Return a digest of the sources that measure and weigh; the directory's name has that of the kernels."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cpu_model() -> str:
    with suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as lines:
        fields = ("vendor_id", "cpu family", "model\t", "model name", "stepping")
        values = dict.fromkeys(line.strip() for line in lines if line.startswith(fields))
        if values:
            return "; ".join(values)
    return platform.processor()


def _read(path: Path, about: dict[str, Any], shapes: Sequence[WeightShape]) -> Choice | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if {key: content[key] for key in about} != about:
            return None
        products = [Product(name) for name in content["products"]]
        return dict(zip(shapes, products, strict=True))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path, content: dict[str, Any]) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".new")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file while the block runs; continue without if locks are missing or its holder takes too long."""
    if sys.platform == "win32":
        yield
        return
    try:
        lock = open(path, "wb")  # noqa: SIM115  closed below
    except OSError:
        yield
        return
    with lock:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _is_taken(lock.fileno()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        yield


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
