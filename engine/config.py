"""How an engine is set up: `EngineConfig`, checked when made.

Imports no torch; the model's own shape is in model_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.errors import InvalidConfigError


class Batching(StrEnum):
    """How sequences come and go: every step, or a whole batch at a time (for comparison)."""

    CONTINUOUS = "continuous"
    STATIC = "static"


class Admission(StrEnum):
    """When a waiting sequence may start.

    PEAK: when the blocks that the running ones are expected to need at their common peak leave room for it.
    PROMPT: as soon as its prompt fits; keeps the pool fuller and preempts more.
    """

    PEAK = "peak"
    PROMPT = "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Set an engine up. Raises InvalidConfigError on a value out of range.

    `model` is a directory with config.json and safetensors. `max_num_batched_tokens` is the token budget of a step.
    `num_kv_blocks=None` takes the pool's size from memory: on CUDA `gpu_memory_share` of the device less what a
    profiled step needs, on the CPU `cpu_memory_share` of what is available now, and never more than
    `max_num_seqs` sequences of `max_model_len` tokens can fill. `max_model_len=None` takes the model's own limit.
    `num_threads=None` leaves torch's setting. `seed` is where the seeds of requests without one derive from.
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 1024
    num_kv_blocks: int | None = None
    block_size: int = 16
    enable_prefix_caching: bool = True
    batching: Batching = Batching.CONTINUOUS
    admission: Admission = Admission.PEAK
    max_model_len: int | None = None
    gpu_memory_share: float = 0.9
    cpu_memory_share: float = 0.25
    num_threads: int | None = None
    seed: int = 0
    warm_up: bool = True

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        if self.device not in ("auto", "cpu", "cuda") and not self.device.startswith("cuda:"):
            raise InvalidConfigError(f"device is {self.device!r}; it must be auto, cpu, cuda or cuda:N.")
        _check_choice("batching", self.batching, tuple(Batching))
        _check_choice("admission", self.admission, tuple(Admission))
        object.__setattr__(self, "batching", Batching(self.batching))
        object.__setattr__(self, "admission", Admission(self.admission))
        _check_at_least("max_num_seqs", self.max_num_seqs, 1)
        _check_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _check_at_least("block_size", self.block_size, 1)
        for name in ("num_kv_blocks", "max_model_len", "num_threads"):
            if getattr(self, name) is not None:
                _check_at_least(name, getattr(self, name), 1)
        for name in ("gpu_memory_share", "cpu_memory_share"):
            share = getattr(self, name)
            if not 0.0 < share <= 1.0:
                raise InvalidConfigError(f"{name} is {share!r}; it must be above 0 and at most 1.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} and max_num_seqs is {self.max_num_seqs}; "
                "a step must have room for one token of every sequence. Raise the first or lower the second."
            )


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")


def _check_at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidConfigError(f"{name} is {value!r}; it must be a whole number of at least {low}.")
