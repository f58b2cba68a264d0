from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.device import with_limits
from engine.errors import InvalidConfigError


def limits(device: str, **given: int) -> tuple[int, int]:
    config = with_limits(EngineConfig(model="", **given), torch.device(device))
    return config.max_num_seqs, config.max_num_batched_tokens


def test_limits_that_nobody_gave_are_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits("cpu") == (128, 1024)
    for gib, expected in ((24, (256, 8192)), (69, (256, 8192)), (139, (1024, 16384))):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, total=gib * 2**30: (0, total))
        assert limits("cuda") == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_num_seqs": 5}, (5, 1024)),
        ({"max_num_seqs": 4000}, (4000, 4000)),
        ({"max_num_batched_tokens": 16}, (16, 16)),
        ({"max_num_batched_tokens": 9000}, (128, 9000)),
        ({"max_num_seqs": 3, "max_num_batched_tokens": 7}, (3, 7)),
    ],
)
def test_a_limit_that_is_given_bounds_the_other(given: dict[str, Any], expected: tuple[int, int]) -> None:
    assert limits("cpu", **given) == expected


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_negative_limit_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{name} is -1; it must be a whole number of at least 1"):
        EngineConfig(model="", **{name: -1})  # type: ignore[arg-type]
