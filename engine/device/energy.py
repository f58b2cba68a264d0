"""Energy used by the GPU, from NVML's counter, if it has one.

NVML's binding (the package nvidia-ml-py) is imported on first use: an engine without it runs, and reports no joules.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_READ_SECONDS = 1.0
"""Minimum interval between reads of the counter, so that most steps only read the clock."""


class EnergyMeter:
    """Joules used by a device's whole GPU since the meter was made, by all processes. Never raises.

    `clock` returns seconds.
    """

    def __init__(self, device: torch.device, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_millijoules = _counter_of(device)
        self._first = self._last = self._read_millijoules()
        self._read_at: float | None = None  # the first read is not cached: a run may be shorter than a second

    @property
    def joules(self) -> float | None:
        """Return the count, at most a second old or the last that could be read; None without a counter."""
        if self._first is None or self._last is None:
            return None
        now = self._clock()
        if self._read_at is None or now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            millijoules = self._read_millijoules()
            self._last = self._last if millijoules is None else millijoules
        return (self._last - self._first) / 1000


def _counter_of(device: torch.device) -> Callable[[], int | None]:
    """Return a function that reads the millijoules since the driver was loaded, and returns None if it cannot.

    The GPU is identified by its UUID, since NVML and CUDA number the GPUs differently.
    """
    if device.type != "cuda":
        return _nothing
    try:
        import pynvml  # noqa: PLC0415 - optional

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except Exception:  # noqa: BLE001 - whatever is missing or too old, the engine works without it
        return _nothing

    def read() -> int | None:
        try:
            millijoules: int = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except pynvml.NVMLError:  # this GPU has no counter, or it is lost
            return None
        return millijoules

    return read


def _nothing() -> int | None:
    return None
