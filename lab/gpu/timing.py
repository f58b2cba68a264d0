"""Timing of calls on a device, and its best rates. Uses tensors only, no model."""

from __future__ import annotations

import gc
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable

import torch

_GROUPS = 5
"""The median of this many groups of calls is reported."""


def seconds_per_call(run: Callable[[], object], device: torch.device, *, calls: int) -> float:
    """Return the median over groups of `calls` consecutive calls, after a warm-up group.

    On CUDA the calls of a group are queued together, which hides their launch if it takes less time than the device
    needs; otherwise the launch time is measured.
    """
    groups = [_seconds(run, device, calls) / calls for _ in range(_GROUPS + 1)]
    return statistics.median(groups[1:])


def copy_bandwidth(device: torch.device, *, num_bytes: int) -> float:
    """Return bytes per second of a copy on the device, counting reads and writes."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / seconds_per_call(lambda: target.copy_(source), device, calls=5)


def product_rate(device: torch.device, *, size: int) -> float:
    """Return operations per second of a bf16 product of two square matrices of random numbers."""
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    return 2 * size**3 / seconds_per_call(lambda: left @ right, device, calls=5)


def release_memory() -> None:
    """Return the memory of a finished section to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def device_name(device: torch.device) -> str:
    """Return the name of the device, and on CUDA its driver."""
    if device.type != "cuda":
        return f"CPU, {torch.get_num_threads()} threads"
    command = shutil.which("nvidia-smi")
    driver = "unknown"
    if command is not None:
        query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
        lines = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30).stdout.split()
        driver = lines[0] if lines else "unknown"
    return f"{torch.cuda.get_device_name(device)}, driver {driver}"


def _seconds(run: Callable[[], object], device: torch.device, calls: int) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            run()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
