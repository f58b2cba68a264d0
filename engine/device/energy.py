"""How much energy the GPU took, by NVML's counter, where there is one. Knows no requests and no steps.

NVML's binding (the package nvidia-ml-py) is imported on first use: an engine without it runs, and tells no joules.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_READ_SECONDS = 1.0
"""The counter is read no more often than this, so that a step pays for a look at the clock only."""


class EnergyMeter:
    """Joules that a device's whole GPU took since the meter was made, whoever used it. Never raises.

    `clock` returns seconds.
    """

    def __init__(self, device: torch.device, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_millijoules = _counter_of(device)
        self._first = self._last = self._read_millijoules()
        self._read_at: float | None = None  # the first look is a fresh one: a run may be shorter than a second

    @property
    def joules(self) -> float | None:
        """Return the count, at most a second old or the last that could be read; None where nothing counts."""
        if self._first is None or self._last is None:
            return None
        now = self._clock()
        if self._read_at is None or now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            millijoules = self._read_millijoules()
            self._last = self._last if millijoules is None else millijoules
        return (self._last - self._first) / 1000


def _counter_of(device: torch.device) -> Callable[[], int | None]:
    """Return what reads the millijoules since the driver was loaded; it returns None where it cannot tell.

    The GPU is found by its UUID, since NVML and CUDA number the GPUs differently.
    """
    if device.type != "cuda":
        return _nothing
    try:
        import pynvml  # noqa: PLC0415 - optional

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except Exception:  # noqa: BLE001 - whatever is missing or too old, the engine can do without
        return _nothing

    def read() -> int | None:
        try:
            millijoules: int = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except pynvml.NVMLError:  # this GPU does not count, or it is lost
            return None
        return millijoules

    return read


def _nothing() -> int | None:
    return None
