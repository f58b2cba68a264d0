"""Tests against compressed-tensors' own packing and dequantization, if it is installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.quantized.config import read_quantization
from engine.quantized.weights import quantized_weights
from tests.engine.quantized.configs import PATH, compressed
from tests.engine.quantized.formats import NAME, Stored, some_weight

compressors: Any = pytest.importorskip("compressed_tensors.compressors", reason="compressed-tensors is not installed")
schemes: Any = pytest.importorskip("compressed_tensors.quantization")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("stored_as", "weights"),
    [
        *(
            ("pack-quantized", {"num_bits": bits, "type": "int", "symmetric": is_symmetric, **shared})
            for bits in (4, 8)
            for is_symmetric in (True, False)
            for shared in ({"strategy": "group", "group_size": 128}, {"strategy": "channel"})
        ),
        ("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}),
        ("int-quantized", {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "tensor"}),
        ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}),
        ("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"}),
        (
            "float-quantized",
            {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [128, 128]},
        ),
    ],
)
def test_values_are_those_of_compressed_tensors_rounded_to_the_scales_dtype(
    stored_as: str, weights: dict[str, Any], dtype: torch.dtype
) -> None:
    scheme = schemes.QuantizationScheme(targets=["Linear"], weights=schemes.QuantizationArgs(**weights))
    tool = compressors.BaseCompressor.get_value_from_registry(stored_as)
    parts = _compressed(tool, scheme, weights, dtype)
    expected = tool.decompress(dict(parts), scheme)["weight"]
    config = compressed(stored_as, weights=weights)
    named = Stored({f"{NAME}.{part}": tensor for part, tensor in parts.items()})
    read = quantized_weights(read_quantization(config, PATH, model_type="llama"), named)
    actual = read.read(f"{NAME}.weight")
    assert expected.dtype == dtype
    assert torch.equal(actual.to(dtype), expected)
    if read.layout(f"{NAME}.weight") is not None:
        assert torch.equal(read.read_grouped(f"{NAME}.weight").widened(), actual)


def _compressed(tool: Any, scheme: Any, weights: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the parts of a random weight as the tool writes them."""
    shape = (136, 384)
    group = {"group": 128, "channel": None, "tensor": None, "block": 128}[weights["strategy"]]
    numbers = some_weight(shape, bits=weights["num_bits"], group=group, is_symmetric=weights["symmetric"], dtype=dtype)
    scales, zeros = numbers.scales, (numbers.zeros - 2 ** (weights["num_bits"] - 1)).to(torch.int8)
    values = numbers.values
    if weights["strategy"] == "tensor":
        scales, zeros = scales[:1].flatten(), zeros[:1].flatten()
    if weights["strategy"] == "block":
        scales, zeros = scales[:2], zeros[:2]
    state = {"weight": values.to(dtype), "weight_scale": scales, "weight_zero_point": zeros}
    parts: dict[str, torch.Tensor] = tool.compress(state, scheme)
    return parts
