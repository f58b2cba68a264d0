"""Settings resolved from the model and the device: where the engine runs, in which dtype, how big a step is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig, SchedulerConfig, Speculation
from engine.errors import InvalidConfigError
from engine.models.config import CheckpointConfig
from kernels.packed_linear import has_cpu_products

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_CPU_LIMITS = (128, 1024)
_GPU_LIMITS = (256, 8192)
_LARGE_GPU_LIMITS = (1024, 16384)
"""Sequences and tokens in a step; the tokens are vLLM's for offline use on such a GPU (0.33)."""

_LARGE_GPU_BYTES = 70 * 2**30


def choose_device(name: str) -> torch.device:
    """Return the configured device; "auto" is CUDA if there is one. Raises InvalidConfigError if it is missing."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name.startswith("cuda") and not has_cuda:
        raise InvalidConfigError(f"device is {name!r} and torch finds no CUDA device; use device 'cpu' or 'auto'.")
    device = torch.device(name)
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise InvalidConfigError(f"device is {name!r} and there are {torch.cuda.device_count()}, counted from cuda:0.")
    return device


def choose_dtype(name: str, model: CheckpointConfig, device: torch.device) -> torch.dtype:
    """Return the configured dtype; "auto" is the checkpoint's own, or fp32 on a CPU whose products for that are slow.

    With AVX2 128 rows of 576 x 3,072 took 15.3 ms in bf16, in fp32 9.4 ms; if torch computes bf16 by itself it is
    worse, 64 rows 22.7 ms instead of 2.8 (kernels/README.md). Raises InvalidConfigError if the checkpoint is in a dtype
    that no engine has and none is configured.
    """
    dtype = wanted_dtype(name, model)
    if dtype is None:
        raise InvalidConfigError(f"{model.path} is stored as {model.dtype}; set dtype to one of {', '.join(_DTYPES)}.")
    return torch.float32 if name == "auto" and device.type == "cpu" and not has_cpu_products(dtype) else dtype


def wanted_dtype(name: str, model: CheckpointConfig) -> torch.dtype | None:
    """Return the configured dtype, for "auto" the checkpoint's own; None if no engine computes in it."""
    return _DTYPES.get(model.dtype if name == "auto" else name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """An engine's complete configuration: the settings, and the values resolved from the model and the device."""

    asked: EngineConfig
    model: CheckpointConfig
    device: torch.device
    dtype: torch.dtype
    scheduler: SchedulerConfig
    overlap: bool
    """Whether a step is planned and started before the last one's tokens are read."""


def resolve(config: EngineConfig, model: CheckpointConfig, device: torch.device) -> ResolvedConfig:
    """Resolve open settings. Raises InvalidConfigError if the model or the device does not allow the configuration."""
    max_model_len = _max_model_len(config, model)
    max_num_seqs, max_num_batched_tokens = step_limits(config, device)
    return ResolvedConfig(
        asked=config,
        model=model,
        device=device,
        dtype=choose_dtype(config.dtype, model, device),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_prefix_caching=config.enable_prefix_caching,
            admission=config.admission,
            policy=config.policy,
            max_passed_over=config.max_passed_over,
            angles_change_after=_angles_change_after(model, max_model_len),
        ),
        overlap=_overlaps(config, device),
    )


def step_limits(config: EngineConfig, device: torch.device) -> tuple[int, int]:
    """Return the maximum of sequences and of tokens in a step; if one is set it bounds the other."""
    num_seqs, num_tokens = _limits(device)
    if config.max_num_batched_tokens is not None:
        num_tokens = config.max_num_batched_tokens
        num_seqs = min(num_seqs, num_tokens)
    if config.max_num_seqs is not None:
        num_seqs = config.max_num_seqs
        num_tokens = max(num_tokens, num_seqs)
    return num_seqs, num_tokens


def _overlaps(config: EngineConfig, device: torch.device) -> bool:
    """Tell whether steps overlap: by default on CUDA, unless drafts need the last token on the host."""
    if config.overlap is None:
        return device.type == "cuda" and config.speculation is Speculation.OFF
    return config.overlap


def _max_model_len(config: EngineConfig, model: CheckpointConfig) -> int:
    limit, longest = config.max_model_len, model.max_model_len
    if limit is None and longest is None:
        raise InvalidConfigError(
            f"{model.path / 'config.json'} has no longest sequence (max_position_embeddings); set max_model_len."
        )
    if limit is not None and longest is not None and limit > longest:
        raise InvalidConfigError(f"max_model_len is {limit}; {model.path} allows at most {longest}.")
    return limit or longest or 0


def _angles_change_after(model: CheckpointConfig, max_model_len: int) -> int | None:
    """Return the length after which the model's angles change, if sequences may become that long."""
    limit = model.angles_change_after
    return limit if limit is not None and limit < max_model_len else None


def _limits(device: torch.device) -> tuple[int, int]:
    if device.type == "cpu":
        return _CPU_LIMITS
    _, total = torch.cuda.mem_get_info(device)
    return _LARGE_GPU_LIMITS if total >= _LARGE_GPU_BYTES else _GPU_LIMITS
