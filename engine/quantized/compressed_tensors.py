"""Read the quantization_config of compressed-tensors: one scheme for the weights of all its modules.

What it says of activations and of the cache of keys and values is not used: these are not rounded as it says.
"""

from __future__ import annotations

from typing import Any

from engine.errors import UnsupportedModelError
from engine.quantized.fields import Fields
from engine.quantized.quantization import Integers, Packing, Scaled

_FLOATS, _NAIVE = "float-quantized", "naive-quantized"
_FORMATS = [str(Packing.PACKED), str(Packing.BYTES), _FLOATS, _NAIVE]


def read_compressed_tensors(fields: Fields) -> Scaled | Integers:
    """Return how its weights are stored. Raises UnsupportedModelError."""
    stored_as = fields.one_of("format", _FORMATS)
    fields.without("transform_config", "the engine does not rotate activations.")
    sparsity = fields.config.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise fields.refused("sparsity_config", "the engine reads dense weights. Use such weights")
    weights = Fields(config=_weights(fields), method=f"weights in {fields.method}", path=fields.path)
    if weights.one_of("type", ["int", "float"], default="int") == "float":
        _refuse_other(weights, stored_as, (_FLOATS, _NAIVE))
        weights.one_of("num_bits", [8])
        return Scaled(block=_block(weights), said_by="config_groups of config.json")
    _refuse_other(weights, stored_as, (Packing.PACKED, Packing.BYTES, _NAIVE))
    strategy = weights.one_of("strategy", ["group", "channel", "tensor"])
    return Integers(
        packing=Packing.PACKED if stored_as == Packing.PACKED else Packing.BYTES,
        bits=weights.one_of("num_bits", [4, 8]),
        group=weights.group_size() if strategy == "group" else None,
        is_symmetric=weights.one_of("symmetric", [True, False], default=True),
        is_single=strategy == "tensor",
        has_places=weights.config.get("actorder") in ("group", "dynamic"),
    )


def _weights(fields: Fields) -> dict[str, Any]:
    """Return the scheme of the weights, which all groups of modules must share."""
    groups = fields.config.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    weights = [scheme.get("weights") if isinstance(scheme, dict) else None for scheme in schemes]
    formats = [scheme.get("format") for scheme in schemes if isinstance(scheme, dict)]
    first = weights[0] if weights else None
    is_one = all(each == first for each in weights) and all(each in (None, fields.config["format"]) for each in formats)
    if not isinstance(first, dict) or not is_one:
        raise fields.refused(
            "config_groups", "the engine reads one scheme of weights for all modules. Use such weights"
        )
    return first


def _refuse_other(weights: Fields, stored_as: str, allowed: tuple[str, ...]) -> None:
    if stored_as not in allowed:
        raise UnsupportedModelError(
            f"{weights.path / 'config.json'} has weights of type {weights.config.get('type')!r} in the format "
            f"{stored_as!r}; the engine reads that type in {' and '.join(allowed)}. Use such weights."
        )


def _block(weights: Fields) -> tuple[int, int | None] | None:
    strategy = weights.one_of("strategy", ["tensor", "channel", "group", "block"])
    if strategy == "block":
        sizes = weights.config.get("block_structure")
        if not isinstance(sizes, list) or len(sizes) != 2 or any(type(size) is not int or size < 1 for size in sizes):
            raise weights.refused("block_structure", "it must be two positive numbers")
        return sizes[0], sizes[1]
    if strategy == "group":
        return 1, weights.group_size()
    return (1, None) if strategy == "channel" else None
