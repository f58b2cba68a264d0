from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.device import choice as module
from engine.device.choice import choose_dtype, step_limits
from engine.errors import InvalidConfigError
from engine.models.config import load_model_config
from tests.engine.tiny_models import TinyModels


def limits(device: str, **given: Any) -> tuple[int, int]:
    return step_limits(EngineConfig(model="", **given), torch.device(device))


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


def test_auto_is_the_checkpoints_dtype_where_the_device_can_multiply_in_it(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = replace(load_model_config(str(tiny_models["llama-gqa"].path)), dtype="bfloat16")
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for has_products, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(module, "has_cpu_products", lambda dtype, has_products=has_products: has_products)
        assert choose_dtype("auto", model, cpu) == expected
        assert choose_dtype("auto", model, cuda) == torch.bfloat16
        assert choose_dtype("bfloat16", model, cpu) == torch.bfloat16
    with pytest.raises(InvalidConfigError, match="is stored as float8; set dtype to one of float32"):
        choose_dtype("auto", replace(model, dtype="float8"), cpu)
