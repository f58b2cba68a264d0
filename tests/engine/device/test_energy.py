"""Tests of joules by NVML's counter, over a fake binding; without one, none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from engine.device.energy import EnergyMeter
from engine.process.messages import Progress, decode_from_engine, encode
from engine.stats import Energy, EngineStats

CUDA = torch.device("cuda", 1)
UUIDS = ["9b1c0000-0000-0000-0000-000000000000", "5e2d0000-0000-0000-0000-000000000001"]


class NVMLError(Exception):
    """What the binding raises."""


class FakeNvml(ModuleType):
    """Two GPUs in the other order than CUDA's, each with a counter; `failing` are functions that raise."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.failing: set[str] = set()
        self.millijoules = {f"GPU-{UUIDS[1]}": 5_000_000, f"GPU-{UUIDS[0]}": 70_000}
        self.num_reads = 0

    def nvmlInit(self) -> None:
        self._check("nvmlInit")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._check("nvmlDeviceGetHandleByUUID")
        if uuid not in self.millijoules:
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self.num_reads += 1
        self._check("nvmlDeviceGetTotalEnergyConsumption")
        return self.millijoules[handle]

    def use(self, cuda_index: int, millijoules: int) -> None:
        self.millijoules[f"GPU-{UUIDS[cuda_index]}"] += millijoules

    def _check(self, name: str) -> None:
        if name in self.failing:
            raise NVMLError("Not Supported")


class Bench:
    """A fake binding, a clock that is set by hand, and meters on them."""

    def __init__(self) -> None:
        self.nvml = FakeNvml()
        self.now = 100.0

    def meter(self, device: torch.device = CUDA) -> EnergyMeter:
        return EnergyMeter(device, clock=lambda: self.now)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    def properties(device: Any) -> SimpleNamespace:
        return SimpleNamespace(uuid=UUIDS[torch.device(device).index or 0])

    bench = Bench()
    monkeypatch.setitem(sys.modules, "pynvml", bench.nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return bench


def test_joules_count_from_the_start_on_the_gpu_with_the_same_uuid(bench: Bench) -> None:
    first, second = bench.meter(torch.device("cuda", 0)), bench.meter(CUDA)
    bench.nvml.use(1, 2_500)
    assert (first.joules, second.joules) == (0.0, 2.5)
    bench.now += 1
    bench.nvml.use(0, 40)
    bench.nvml.use(1, 500)
    assert (first.joules, second.joules) == (0.04, 3.0)


def test_the_counter_is_read_once_a_second_at_most(bench: Bench) -> None:
    meter = bench.meter()
    assert meter.joules == 0.0
    bench.nvml.use(1, 1_000)
    before = bench.nvml.num_reads
    for _ in range(100):
        bench.now += 0.0099
        assert meter.joules == 0.0
    assert bench.nvml.num_reads == before
    bench.now += 0.0101
    assert meter.joules == 1.0
    assert bench.nvml.num_reads == before + 1


def test_a_counter_that_fails_later_leaves_the_last_value(bench: Bench) -> None:
    meter = bench.meter()
    bench.nvml.use(1, 1_000)
    assert meter.joules == 1.0
    bench.nvml.failing.add("nvmlDeviceGetTotalEnergyConsumption")
    bench.now += 5
    assert meter.joules == 1.0


@pytest.mark.parametrize(
    "name", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption"]
)  # the driver is missing, the GPU is not NVML's, it does not count
def test_without_a_counter_there_are_no_joules(bench: Bench, name: str) -> None:
    bench.nvml.failing.add(name)
    assert bench.meter().joules is None


def _without_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def _without_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace())


def _with_a_uuid_that_nvml_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0000"))


@pytest.mark.parametrize("lack", [_without_binding, _without_uuid, _with_a_uuid_that_nvml_does_not_know])
def test_a_machine_that_lacks_something_has_no_joules(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lack: Callable[[pytest.MonkeyPatch], None]
) -> None:
    lack(monkeypatch)
    assert bench.meter().joules is None


def test_a_cpu_has_no_joules_and_asks_nobody(bench: Bench) -> None:
    assert bench.meter(torch.device("cpu")).joules is None
    assert bench.nvml.num_reads == 0


@pytest.mark.parametrize("joules", [None, 2.5])
def test_joules_reach_the_other_process(joules: float | None) -> None:
    sent = Progress([], EngineStats(energy=Energy(num_joules=joules)), 1)
    received = decode_from_engine(encode(sent))
    assert isinstance(received, Progress)
    assert received.stats.energy.num_joules == joules
