"""vLLM's names for settings of `LLM`: translated to ours, or refused with ours named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.config import EngineConfig, check_share
from engine.errors import InvalidConfigError
from engine.gguf.container import is_gguf
from engine.models.config import load_model_config


def engine_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `LLM` under the names of EngineConfig, without `quantization`, which the files decide.

    Raises InvalidConfigError if one of vLLM's has no counterpart.
    """
    ours = {name: value for name, value in settings.items() if name != "quantization"}
    num_devices = ours.pop("tensor_parallel_size", 1)
    if isinstance(num_devices, bool) or num_devices != 1:
        raise InvalidConfigError(
            f"tensor_parallel_size is {num_devices!r}; an engine runs on one device, so it must be 1. Choose the "
            "device with device='cuda:N'; for several GPUs, run an LLM in a process for each."
        )
    if "gpu_memory_utilization" in ours:
        share = ours.pop("gpu_memory_utilization")
        if "gpu_memory_share" in ours:
            raise InvalidConfigError(
                "gpu_memory_utilization and gpu_memory_share are both given; they mean the same. Give one of them."
            )
        check_share("gpu_memory_utilization (here gpu_memory_share)", share)
        ours["gpu_memory_share"] = share
    return ours


def check_quantization(wanted: object, config: EngineConfig) -> None:
    """Raise InvalidConfigError unless `quantization` is None or the method in which the model's files are quantized."""
    if wanted is None:
        return
    of_files = _quantization_of_files(config)
    if wanted != of_files:
        raise InvalidConfigError(
            f"quantization is {wanted!r}, and the files of {config.model} are "
            f"{'not quantized' if of_files is None else f'in {of_files!r}'}; weights are read as their files have them "
            "and computed in dtype. Leave quantization out, or choose a model with such files."
        )


def _quantization_of_files(config: EngineConfig) -> str | None:
    """Return the method under vLLM's name; None if the files are not quantized."""
    if is_gguf(Path(config.model)):
        return "gguf"
    quantization = load_model_config(config.model, impl=config.model_impl).quantization
    return None if quantization is None else str(quantization.method)
