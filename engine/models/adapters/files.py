"""Read from a LoRA adapter's files, as PEFT writes them, which weights it changes. Loads no weights. No torch.

W' = W + s · B · A        A `[rank, in]`, B `[out, rank]`; s = alpha / rank, or alpha / √rank (rsLoRA)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.models.config import CheckpointConfig, ModelConfig
from engine.models.layer_parts import LayerParts

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_LARGEST_ALPHA = 1e9
_DEFAULT_ALPHA = 8
"""PEFT's, where the file does not say."""
_MERGE = "Merge it into its model (PEFT's `merge_and_unload`) and serve that as a model of its own."
_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>(?:model\.language_model\.|language_model\.model\.|model\.)?"
    r"(?P<weight>layers\.\d+\.(?:self_attn|mlp)\.\w+))\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)
CANNOT_BE_USED = "The adapter cannot be used: "
"""Begins the error of a request whose adapter cannot be read: an operator's matter, as it names folders."""
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the model's own weights as they are."""
_CHANGES_MORE = {
    "use_dora": "DoRA, which scales the columns anew",
    "modules_to_save": "whole weights in place of the model's",
    "lora_bias": "biases",
    "fan_in_fan_out": "weights stored the other way round",
    "trainable_token_indices": "embeddings of tokens",
    "alora_invocation_tokens": "an adapter that begins at certain tokens",
    "target_parameters": "parameters that are no linear layers",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal factors",
    "arrow_config": "a choice among several adapters",
    "layer_replication": "repeated layers",
}
"""Settings that must be empty or false, and what they are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The change of one weight: the names of its two factors in the file, and the scale of their product."""

    down: str
    up: str
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFiles:
    """The files of an adapter whose every change fits its model."""

    weights: Path
    changes: Mapping[str, LowRank]
    """By the name of the changed weight in the model: `layers.0.self_attn.q_proj`."""
    identity: str
    """The folder, and the sizes and times of its files: another one means other weights."""


def identity_of(folder: Path) -> str:
    """Return `AdapterFiles.identity`. Raises ModelLoadError if a file is missing."""
    if "\0" in str(folder):
        raise ModelLoadError(f"{str(folder)!r} is no folder; give an adapter's folder.")
    entries = []
    for name in (CONFIG, WEIGHTS):
        try:
            status = (folder / name).stat()
        except OSError as error:
            raise ModelLoadError(
                f"{folder} has no {name} ({error.strerror}); give an adapter's folder as PEFT's save_pretrained "
                "writes it."
            ) from None
        entries.append([status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino])
    return json.dumps([str(folder.resolve()), entries])


def read_adapter(folder: Path, model: CheckpointConfig) -> AdapterFiles:
    """Check an adapter against its model, by names and shapes.

    Raises ModelLoadError, or UnsupportedModelError for a change that only merged weights can have.
    """
    if not isinstance(model, ModelConfig):
        raise UnsupportedModelError(
            f"{folder}: {model.model_type} models are run by transformers' code, which takes no adapters here. {_MERGE}"
        )
    identity, config = identity_of(folder), _read_config(folder / CONFIG)
    shapes, sides = _shapes(model), _sides(folder / WEIGHTS)
    changes = {}
    for weight, names in sides.items():
        if weight not in shapes:
            raise UnsupportedModelError(
                f"{folder / WEIGHTS} changes {weight}, which the model does not have or no adapter can change here; it "
                f"has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj of {model.num_layers} layers. "
                f"{_MERGE}"
            )
        changes[weight] = _change(folder / WEIGHTS, weight, names, shapes[weight], config)
    return AdapterFiles(weights=folder / WEIGHTS, changes=changes, identity=identity)


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}.") from None
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise UnsupportedModelError(f"{path}: peft_type is {kind!r}; adapters of the type LORA can be run. {_MERGE}")
    for name, what in _CHANGES_MORE.items():
        if config.get(name):
            raise UnsupportedModelError(f"{path}: {name} is {config[name]!r}: {what}, which cannot be run. {_MERGE}")
    if config.get("init_lora_weights") not in _PLAIN_STARTS:
        raise UnsupportedModelError(
            f"{path}: init_lora_weights is {config['init_lora_weights']!r}, which moves a part of the model's weights "
            f"into the adapter. Convert it to a plain one (PEFT's `path_initial_model_for_weight_conversion`), or: "
            f"{_MERGE}"
        )
    if config.get("bias", "none") != "none":
        raise UnsupportedModelError(f"{path}: bias is {config['bias']!r}; only 'none' can be run. {_MERGE}")
    return config


def _shapes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return `[out, in]` of each weight that an adapter may change."""
    return {
        name: (width, joined.depth)
        for index in range(model.num_layers)
        for joined in LayerParts.of(model, f"layers.{index}").all
        for name, width in joined.parts
    }


@dataclass(slots=True)
class _Side:
    name: str
    module: str
    """The weight's name in the model that the adapter was made for."""
    shape: tuple[int, ...]


def _sides(path: Path) -> dict[str, dict[str, _Side]]:
    """Return the factors `A` and `B` of each changed weight."""
    found: dict[str, dict[str, _Side]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                match = _TENSOR.fullmatch(name)
                if match is None:
                    raise UnsupportedModelError(
                        f"{path}: the tensor {name} is no low-rank change of a layer's weight. {_MERGE}"
                    )
                shape = tuple(file.get_slice(name).get_shape())
                found.setdefault(match["weight"], {})[match["side"]] = _Side(name, match["module"], shape)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}.") from None
    if not found:
        raise ModelLoadError(f"{path} has no tensors; give an adapter that changes something.")
    return found


def _change(
    path: Path, weight: str, sides: Mapping[str, _Side], shape: tuple[int, int], config: Mapping[str, Any]
) -> LowRank:
    if len(sides) < 2:
        raise ModelLoadError(f"{path}: {weight} has lora_{next(iter(sides))} alone; it needs lora_A and lora_B.")
    down, up = sides["A"], sides["B"]
    rank = down.shape[0] if down.shape else 0
    if rank < 1 or down.shape != (rank, shape[1]) or up.shape != (shape[0], rank):
        raise ModelLoadError(
            f"{path}: the factors of {weight} have the shapes {down.shape} and {up.shape}; the model's weight "
            f"{shape} needs (rank, {shape[1]}) and ({shape[0]}, rank). Is this the adapter of another model?"
        )
    return LowRank(down=down.name, up=up.name, scale=_scale(path, down.module, rank, config))


def _scale(path: Path, module: str, rank: int, config: Mapping[str, Any]) -> float:
    alpha, patterns = config.get("lora_alpha", _DEFAULT_ALPHA), config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise ModelLoadError(f"{path.parent / CONFIG}: alpha_pattern is {patterns!r}; it must be an object.")
    for pattern, value in patterns.items():
        if _is_matched(path, pattern, module):
            alpha = value  # the first one counts
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < _LARGEST_ALPHA:
        raise ModelLoadError(f"{path.parent / CONFIG}: lora_alpha of {module} is {alpha!r}; it must be a number.")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _is_matched(path: Path, pattern: str, module: str) -> bool:
    try:
        return re.match(rf"(.*\.)?({pattern})$", module) is not None
    except re.error as error:
        raise ModelLoadError(f"{path.parent / CONFIG}: alpha_pattern has {pattern!r}: {error}.") from None
