"""Tests of quantization_config: what is read of it, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import UnsupportedModelError
from engine.quantized.config import read_quantization
from engine.quantized.quantization import Integers, Packing, Scaled
from tests.engine.quantized.configs import PATH, WEIGHTS, compressed

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def stored(config: dict[str, Any]) -> Integers | Scaled:
    return read_quantization(config, PATH, model_type="llama").stored


def floats(**changes: Any) -> dict[str, Any]:
    return compressed("float-quantized", weights={"num_bits": 8, "type": "float", "symmetric": True, **changes})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GPTQ, {"packing": Packing.GPTQ, "bits": 4, "group": 128, "is_symmetric": True}),
        (
            {**GPTQ, "checkpoint_format": "gptq_v2", "bits": 8, "group_size": -1, "sym": False, "desc_act": True},
            {"packing": Packing.GPTQ_V2, "bits": 8, "group": None, "is_symmetric": False, "has_places": True},
        ),
        (
            {**GPTQ, "format": "gptq_v2", "dynamic": {"-:lm_head": {}}},
            {"packing": Packing.GPTQ_V2, "bits": 4, "group": 128, "is_symmetric": True},
        ),
        (AWQ, {"packing": Packing.AWQ, "bits": 4, "group": 128, "is_symmetric": False}),
        (
            {"quant_method": "awq", "w_bit": 4, "group_size": 64, "version": "GEMM"},
            {"packing": Packing.AWQ, "bits": 4, "group": 64, "is_symmetric": False},
        ),
        (
            compressed("pack-quantized"),
            {"packing": Packing.PACKED, "bits": 4, "group": 128, "is_symmetric": True},
        ),
        (
            compressed("pack-quantized", weights={**WEIGHTS, "symmetric": False, "actorder": "group"}),
            {"packing": Packing.PACKED, "bits": 4, "group": 128, "is_symmetric": False, "has_places": True},
        ),
        (
            compressed("int-quantized", weights={"num_bits": 8, "strategy": "channel"}),
            {"packing": Packing.BYTES, "bits": 8, "group": None, "is_symmetric": True},
        ),
        (
            compressed("naive-quantized", weights={"num_bits": 8, "strategy": "tensor"}),
            {"packing": Packing.BYTES, "bits": 8, "group": None, "is_symmetric": True, "is_single": True},
        ),
    ],
)
def test_whole_numbers_are_read_from_the_configuration(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert stored(config) == Integers(**expected)


@pytest.mark.parametrize(
    ("changes", "block"),
    [
        ({"strategy": "tensor"}, None),
        ({"strategy": "channel"}, (1, None)),
        ({"strategy": "group", "group_size": 64}, (1, 64)),
        ({"strategy": "block", "block_structure": [128, 64]}, (128, 64)),
    ],
)
def test_floats_have_the_scales_of_their_strategy(
    changes: dict[str, Any], block: tuple[int, int | None] | None
) -> None:
    found = stored(floats(**changes))
    assert isinstance(found, Scaled)
    assert found.block == block


TWO_GROUPS = {name: {"weights": {**WEIGHTS, "num_bits": bits}} for name, bits in (("a", 4), ("b", 8))}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**GPTQ, "bits": 3}, "bits 3 for gptq; the engine reads 4 and 8"),
        ({**GPTQ, "bits": True}, "bits True"),
        ({**GPTQ, "bits": None}, "bits None"),
        ({**GPTQ, "group_size": 0}, "group_size 0 for gptq; it must be a positive number, or -1"),
        ({**GPTQ, "group_size": "128"}, "group_size '128'"),
        ({**GPTQ, "sym": "yes"}, "sym 'yes' for gptq; the engine reads True and False"),
        (
            {**GPTQ, "checkpoint_format": "marlin"},
            "checkpoint_format 'marlin' for gptq; the engine reads gptq and gptq_v2",
        ),
        ({**GPTQ, "pack_dtype": "int64"}, "pack_dtype 'int64' for gptq; the engine reads int32"),
        ({**GPTQ, "dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic .* the same bits and groups"),
        ({**GPTQ, "dynamic": ["-:x"]}, "dynamic"),
        ({**AWQ, "version": "gemv"}, "version 'gemv' for awq; the engine reads gemm"),
        ({**AWQ, "version": 3}, "version 3 for awq"),
        ({**AWQ, "bits": 8}, "bits 8 for awq; the engine reads 4"),
        ({**AWQ, "zero_point": False}, "zero_point False for awq; the engine reads True"),
        (compressed("marlin-24"), "format 'marlin-24' for compressed-tensors; the engine reads pack-quantized and int"),
        (compressed("nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized'"),
        (compressed("pack-quantized", config_groups={}), "config_groups {} .* one scheme of weights"),
        (compressed("pack-quantized", config_groups=None), "config_groups None"),
        (compressed("pack-quantized", config_groups=TWO_GROUPS), "config_groups .* one scheme of weights"),
        (compressed("pack-quantized", config_groups={"a": {"weights": None}}), "config_groups .* one scheme"),
        (compressed("pack-quantized", config_groups={"a": "x"}), "config_groups .* one scheme"),
        (
            compressed("pack-quantized", config_groups={"a": {"weights": WEIGHTS, "format": "int-quantized"}}),
            "config_groups .* one scheme",
        ),
        (
            compressed("pack-quantized", config_groups={"a": {"weights": WEIGHTS, "format": ["pack-quantized"]}}),
            "config_groups .* one scheme",
        ),
        (
            compressed("pack-quantized", config_groups={"a": {"weights": WEIGHTS, "format": {"a": 1}}}),
            "config_groups .* one scheme",
        ),
        ({**compressed(""), "format": ["pack-quantized"]}, "format .* for compressed-tensors; the engine reads pack"),
        ({**GPTQ, "checkpoint_format": ["gptq"]}, "checkpoint_format .* for gptq; the engine reads gptq and gptq_v2"),
        ({**AWQ, "version": ["gemm"]}, "version .* for awq; the engine reads gemm"),
        (
            compressed("pack-quantized", weights={**WEIGHTS, "num_bits": 3}),
            "num_bits 3 for weights in compressed-tensors",
        ),
        (
            compressed("pack-quantized", weights={**WEIGHTS, "strategy": "block"}),
            "strategy 'block' .* group and channel",
        ),
        (
            compressed("pack-quantized", weights={**WEIGHTS, "type": "float"}),
            "type 'float' in the format 'pack-quantized'",
        ),
        (
            compressed("float-quantized"),
            "type 'int' in the format 'float-quantized'; .* pack-quantized and int-quantized",
        ),
        (compressed("pack-quantized", transform_config={"config_groups": {"R4": {}}}), "transform_config .* rotate"),
        (compressed("pack-quantized", sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config .* dense"),
        (compressed("pack-quantized", sparsity_config="x"), "sparsity_config 'x'"),
        (floats(strategy="tensor", num_bits=4), "num_bits 4 .* the engine reads 8"),
        (floats(strategy="block", block_structure=[128]), "block_structure .* two positive numbers"),
        (floats(strategy="token"), "strategy 'token'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"/models/m/config.json has .*{message}"):
        stored(config)


def test_a_method_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"'bitsandbytes' .* reads fp8, gptq, awq, compressed-tensors, and mxfp4"
    ):
        stored({"quant_method": "bitsandbytes"})
