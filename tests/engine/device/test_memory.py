"""Tests of the memory that an engine uses besides its weights and its cache."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from engine.device.memory import allocating
from engine.errors import InvalidConfigError
from engine.loop import runner
from tests.engine.builders import make_engine
from tests.engine.tiny_models import VARIANTS, TinyModel, save_tiny

_SIZE, _COUNT = 100_000, 400
"""Of allocations that glibc takes from its heap, and does not give back while one that came later is held."""


def held_bytes() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc gives memory back when asked")
def test_an_engine_that_has_loaded_gives_back_what_was_freed(tmp_path: Path) -> None:
    save_tiny(tmp_path, VARIANTS["llama-gqa"])
    model = TinyModel(tmp_path, [], [], [])
    make_engine(model)  # what a first one loads stays
    freed = [bytearray(_SIZE) for _ in range(_COUNT)]
    last = bytearray(_SIZE)
    before = held_bytes()
    freed.clear()
    engine = make_engine(model)
    assert held_bytes() < before - _COUNT * _SIZE // 2
    assert (engine.info.num_kv_blocks, len(last)) == (400, _SIZE)  # both are held up to here


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_kv_blocks": 10**13}, r"a KV cache of .* GiB \(10000000000001 blocks of .* on cpu\. Lower num_kv_blocks"),
        ({"num_kv_blocks": 10**20}, r"a KV cache of .* Lower num_kv_blocks"),
        ({"swap_space_gib": 1e9}, r"a swap space of 1e\+09 GiB on the host\. Lower swap_space_gib"),
    ],
)
def test_memory_that_cannot_be_had_is_told_with_what_asked_for_it(
    tmp_path: Path, settings: dict[str, float], message: str
) -> None:
    save_tiny(tmp_path, VARIANTS["llama-gqa"])
    with pytest.raises(InvalidConfigError, match=f" for {message}, or free memory"):
        make_engine(TinyModel(tmp_path, [], [], []), **settings)


def test_memory_that_a_share_asked_for_is_told_with_that_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, VARIANTS["llama-gqa"])
    monkeypatch.setattr(runner, "num_kv_blocks", lambda *_, **__: 10**13)  # as if others had taken what was free
    with pytest.raises(InvalidConfigError, match=r" for a KV cache .* Lower cpu_memory_share, or"):
        make_engine(TinyModel(tmp_path, [], [], []), num_kv_blocks=None)


@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError])
def test_a_broken_device_is_not_told_as_lack_of_memory(kind: type[RuntimeError]) -> None:
    with pytest.raises(kind, match="illegal"), allocating("a KV cache", setting="num_kv_blocks"):
        raise kind("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")]
)
def test_lack_of_a_devices_memory_is_told(error: RuntimeError) -> None:
    told = pytest.raises(InvalidConfigError, match=r"a KV cache\. Lower num_kv_blocks")
    with told, allocating("a KV cache", setting="num_kv_blocks"):
        raise error
