"""Settings of an engine: `EngineConfig`, validated on construction.

Imports no torch; the model's shape is in models/config.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import InvalidConfigError

_MIN_SAMPLED_ROWS = 256
"""A step may sample this many rows even with few seats, which leaves room for the drafts of a few sequences."""


class Admission(StrEnum):
    """When a waiting sequence may start."""

    PEAK = "peak"
    """When the pool has room for the blocks that the running sequences are expected to need at their common peak."""
    PROMPT = "prompt"
    """As soon as its prompt fits; keeps the pool fuller and preempts more."""


class PolicyName(StrEnum):
    """Which waiting sequence starts next and which running one is preempted; classes are in scheduling/policies.py."""

    FCFS = "fcfs"
    PRIORITY = "priority"
    DEADLINE = "deadline"
    SHORTEST = "shortest"
    FAIR = "fair"
    PREFIX = "prefix"


class ModelImpl(StrEnum):
    """Whose modelling code runs the model."""

    AUTO = "auto"
    """Our own if it supports the model, otherwise transformers'."""
    TOKENMILL = "tokenmill"
    """Our own decoder."""
    TRANSFORMERS = "transformers"
    """Transformers' code with our paged attention in it."""


class LoadFormat(StrEnum):
    """Source of the weights: the model's files, or a seed (to measure a shape without its files)."""

    SAFETENSORS = "safetensors"
    RANDOM = "random"


class Speculation(StrEnum):
    """Source of drafts: none, or the sequence's own text (engine/speculation/lookup_drafter.py)."""

    OFF = "off"
    NGRAM = "ngram"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and a batch, and the scheduling policy; every limit is decided here."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True
    admission: Admission = Admission.PEAK
    policy: PolicyName = PolicyName.PRIORITY
    max_passed_over: int = 64
    angles_change_after: int | None = None
    """A sequence that grows beyond this many tokens is recomputed with other rotary angles (longrope)."""

    @property
    def max_sampled_rows(self) -> int:
        """Return how many tokens a step may sample, drafts included; memory is reserved for this many."""
        return min(self.max_num_batched_tokens, max(self.max_num_seqs, _MIN_SAMPLED_ROWS))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an engine. Raises InvalidConfigError if a value is out of range."""

    model: str
    """A directory with config.json and safetensors, or a GGUF file."""
    model_impl: ModelImpl = ModelImpl.AUTO
    load_format: LoadFormat = LoadFormat.SAFETENSORS
    dtype: str = "auto"
    """"auto" is the checkpoint's dtype, or float32 on a CPU without products of that dtype."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    max_num_seqs: int | None = None
    """None takes a default for the device (engine/device/choice.py)."""
    max_num_batched_tokens: int | None = None
    """The token budget of a step; None takes a default for the device."""
    num_kv_blocks: int | None = None
    """None sizes the pool from memory: on CUDA `gpu_memory_share` of the device less what a profiled step needs, on the
    CPU `cpu_memory_share` of what is available now, and never more than `max_num_seqs` sequences of `max_model_len`
    tokens can fill.
    """
    block_size: int = 16
    enable_prefix_caching: bool = True
    admission: Admission = Admission.PEAK
    policy: PolicyName = PolicyName.PRIORITY
    max_passed_over: int = 64
    """The oldest waiting request starts after at most this many others have passed it, whatever the policy."""
    overlap: bool | None = None
    """Plan and start a step before the last one's tokens are read, which hides the host's work behind the GPU; None
    means True on CUDA without speculation.
    """
    enforce_eager: bool = False
    """On CUDA, launch a decode step's kernels one by one instead of replaying one graph."""
    speculation: Speculation = Speculation.OFF
    """Draft tokens of a sequence ahead; the output does not change, and drafting pauses when it costs time."""
    num_speculative_tokens: int = 64
    """Maximum number of drafts per sequence and step."""
    prompt_lookup_min: int = 1
    """A sequence gets drafts if at least this many of its last tokens occurred before."""
    prompt_lookup_max: int = 8
    """The longest suffix of a sequence that is looked up; shorter ones follow."""
    max_model_len: int | None = None
    """None takes the model's own limit."""
    gpu_memory_share: float = 0.9
    cpu_memory_share: float = 0.25
    swap_space_gib: float = 0.0
    """Host memory for the KV of preempted sequences, used if copying is cheaper than recomputing."""
    num_threads: int | None = None
    """None keeps torch's setting."""
    grammar_timeout_seconds: float = 10.0
    """Processor time limit for compiling a grammar."""
    report_decisions: bool = False
    """Send the scheduler's decisions along with the tokens."""
    seed: int = 0
    """Seeds of requests without their own derive from it; with `load_format` "random" so do the weights, and the
    directory then needs only config.json.
    """
    warm_up: bool = True

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_flags()
        self._check_speculation()
        self._check_sizes()
        self._check_memory()

    def _check_choices(self) -> None:
        _check_choice("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        if self.device not in ("auto", "cpu", "cuda") and not str(self.device).startswith("cuda:"):
            raise InvalidConfigError(f"device is {self.device!r}; it must be auto, cpu, cuda or cuda:N.")
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), tuple(choices))
            object.__setattr__(self, name, choices(getattr(self, name)))

    def _check_flags(self) -> None:
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "overlap" and value is None):
                raise InvalidConfigError(f"{name} is {value!r}; it must be True or False.")

    def _check_speculation(self) -> None:
        if self.overlap and self.speculation is not Speculation.OFF:
            raise InvalidConfigError(
                f"overlap is True with speculation {str(self.speculation)!r}; drafts need the last step's tokens "
                "on the host. Leave one of them out."
            )
        _check_between("num_speculative_tokens", self.num_speculative_tokens, low=1, high=64)
        _check_between("prompt_lookup_max", self.prompt_lookup_max, low=1, high=64)
        _check_between("prompt_lookup_min", self.prompt_lookup_min, low=1, high=self.prompt_lookup_max)

    def _check_sizes(self) -> None:
        _check_at_least("max_passed_over", self.max_passed_over, 1)
        _check_at_least("block_size", self.block_size, 1)
        _check_between("seed", self.seed, low=-(2**63), high=2**63 - 1)
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_kv_blocks", "max_model_len", "num_threads"):
            if getattr(self, name) is not None:
                _check_at_least(name, getattr(self, name), 1)
        num_seqs, num_tokens = self.max_num_seqs, self.max_num_batched_tokens
        if num_seqs is not None and num_tokens is not None and num_tokens < num_seqs:
            raise InvalidConfigError(
                f"max_num_batched_tokens is {num_tokens} and max_num_seqs is {num_seqs}; "
                "a step must have room for one token of every sequence. Raise the first or lower the second."
            )
        seconds = self.grammar_timeout_seconds
        if not (_is_number(seconds) and seconds > 0.0):
            raise InvalidConfigError(f"grammar_timeout_seconds is {seconds!r}; it must be above 0.")

    def _check_memory(self) -> None:
        if not (_is_number(self.swap_space_gib) and 0.0 <= self.swap_space_gib < math.inf):
            raise InvalidConfigError(f"swap_space_gib is {self.swap_space_gib!r}; it must be 0 or a number above it.")
        for name in ("gpu_memory_share", "cpu_memory_share"):
            check_share(name, getattr(self, name))


def check_share(name: str, share: object) -> None:
    """Raise InvalidConfigError unless a share of memory is above 0 and at most 1."""
    if not (isinstance(share, int | float) and not isinstance(share, bool) and 0.0 < share <= 1.0):
        raise InvalidConfigError(f"{name} is {share!r}; it must be above 0 and at most 1.")


_CHOICES: dict[str, type[StrEnum]] = {
    "model_impl": ModelImpl,
    "load_format": LoadFormat,
    "admission": Admission,
    "policy": PolicyName,
    "speculation": Speculation,
}
"""Fields that also accept their value as text, which is converted."""

_FLAGS = ("enable_prefix_caching", "enforce_eager", "overlap", "report_decisions", "warm_up")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.")


def _check_between(name: str, value: int, *, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidConfigError(f"{name} is {value!r}; it must be a whole number from {low} to {high}.")


def _check_at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise InvalidConfigError(f"{name} is {value!r}; it must be a whole number of at least {low}.")
