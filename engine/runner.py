"""Run one step on the device: copy the inputs over, forward, sample. Knows plans and tensors, no queues.

The host waits for the device once per step, for the sampled tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import Seats, StepArrays, build_arrays
from engine.blocks import NULL_BLOCK
from engine.config import EngineConfig
from engine.errors import InvalidConfigError
from engine.memory import available_cpu_bytes, num_kv_blocks
from engine.model import Decoder, KvCache, StepTensors
from engine.model_config import ModelConfig
from engine.outputs import TokenLogprobs
from engine.plan import StepPlan
from engine.request import Sequence
from engine.sampler import SamplingRows, sample
from kernels.write_kv import preferred_cache_dtype

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_CPU_WARM_UP_TOKENS = 32
"""Enough to compile every kernel; a CPU's memory is not sized from this step."""


class Runner:
    """Own the model, the KV cache and the step's buffers on one device."""

    def __init__(self, config: EngineConfig, model: ModelConfig, *, max_model_len: int) -> None:
        self._config = config
        self.device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, model)
        if self.device.type == "cpu" and config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        with torch.inference_mode():
            self._decoder = Decoder(model, dtype=self.dtype, device=self.device, max_positions=max_model_len)
        self._cache_dtype = preferred_cache_dtype(self.device.type, self.dtype)
        self._seats = Seats(config.max_num_seqs)
        self._cache: KvCache = self._new_cache(2)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._warm_up(min(config.max_num_batched_tokens, max_model_len), num_rows=config.max_num_seqs)
        elif config.warm_up:
            self._warm_up(min(_CPU_WARM_UP_TOKENS, config.max_num_batched_tokens, max_model_len), num_rows=2)
        self.num_kv_blocks = num_kv_blocks(
            config, model, max_model_len=max_model_len, free_bytes=self._free_bytes(), dtype=self._cache_dtype
        )
        self._cache = self._new_cache(self.num_kv_blocks + 1)

    @torch.inference_mode()
    def run(self, plan: StepPlan, block_tables: npt.NDArray[np.int32]) -> tuple[list[int], dict[int, TokenLogprobs]]:
        """Compute the plan; return a token for each sampling sequence, in order, and log-probabilities by place."""
        arrays = build_arrays(plan, block_tables, block_size=self._config.block_size)
        x, residual = self._decoder.forward(self._to_device(arrays), self._cache)
        if not arrays.sampled_rows.size:
            return [], {}
        picked = torch.from_numpy(arrays.sampled_rows).to(self.device, non_blocking=True)
        logits = self._decoder.logits(x[picked], residual[picked])
        return sample(logits, self._seats.gather([*sampling_sequences(plan), *plan.padding]))

    def fill_cache(self, value: float) -> None:
        """Overwrite every block, for tests that stale content is never read."""
        for keys, values in self._cache:
            keys.fill_(value)
            values.fill_(value)

    def _to_device(self, arrays: StepArrays) -> StepTensors:
        return StepTensors(
            token_ids=self._upload(arrays.token_ids),
            positions=self._upload(arrays.positions),
            slots=self._upload(arrays.slots),
            block_tables=self._upload(arrays.block_tables),
            query_start=self._upload(arrays.query_start),
            context_lens=self._upload(arrays.context_lens),
            max_query_len=arrays.max_query_len,
            max_context_len=arrays.max_context_len,
        )

    def _upload(self, array: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _new_cache(self, num_blocks: int) -> KvCache:
        model = self._decoder.config
        shape = (num_blocks, model.num_kv_heads, self._config.block_size, model.head_dim)
        return [
            (
                torch.zeros(shape, dtype=self._cache_dtype, device=self.device),
                torch.zeros(shape, dtype=self._cache_dtype, device=self.device),
            )
            for _ in range(model.num_layers)
        ]

    @torch.inference_mode()
    def _warm_up(self, num_tokens: int, *, num_rows: int) -> None:
        """Compile what compiles on first use, and let a full step with sampling show how much memory it takes."""
        block_size = self._config.block_size
        width = -(-num_tokens // block_size)
        for counts in ([num_tokens], [1] * min(2, num_tokens), [num_tokens - 1, 1] if num_tokens > 1 else [1]):
            lens = np.array(counts, dtype=np.int32)
            total = int(lens.sum())
            step = StepArrays(
                token_ids=np.zeros(total, dtype=np.int64),
                positions=np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
                slots=np.full(total, -1, dtype=np.int64),
                block_tables=np.full((len(counts), width), NULL_BLOCK, dtype=np.int32),
                query_start=np.concatenate(([0], np.cumsum(lens))).astype(np.int32),
                context_lens=lens,
                max_query_len=int(lens.max()),
                max_context_len=int(lens.max()),
                sampled_rows=np.zeros(min(num_rows, total), dtype=np.int64),
            )
            x, residual = self._decoder.forward(self._to_device(step), self._cache)
            picked = self._upload(step.sampled_rows)
            sample(self._decoder.logits(x[picked], residual[picked]), _random_rows(len(step.sampled_rows)))

    def _free_bytes(self) -> int:
        if self.device.type == "cpu":
            return int(available_cpu_bytes() * self._config.cpu_memory_share)
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        # What the warm-up step needed at its peak is not in use now and must stay free for later steps.
        step_bytes = torch.cuda.max_memory_allocated(self.device) - torch.cuda.memory_allocated(self.device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return int(free - step_bytes - total * (1.0 - self._config.gpu_memory_share))


def choose_device(name: str) -> torch.device:
    """Return the device asked for; "auto" is CUDA where there is one. Raises InvalidConfigError without it."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name.startswith("cuda") and not has_cuda:
        raise InvalidConfigError(f"device is {name!r} and torch finds no CUDA device; use device 'cpu' or 'auto'.")
    return torch.device(name)


def choose_dtype(name: str, model: ModelConfig) -> torch.dtype:
    """Return the dtype asked for; "auto" is the checkpoint's own."""
    name = model.dtype if name == "auto" else name
    if name not in _DTYPES:
        raise InvalidConfigError(f"{model.path} is stored as {name}; set dtype to one of {', '.join(_DTYPES)}.")
    return _DTYPES[name]


def _random_rows(count: int) -> SamplingRows:
    """Return parameters under which every path of the sampler runs."""
    ones = np.ones(count, dtype=np.float32)
    return SamplingRows(
        is_greedy=np.zeros(count, dtype=np.bool_),
        temperature=ones,
        top_k=np.zeros(count, dtype=np.int64),
        top_p=ones * np.float32(0.9),
        min_p=ones * np.float32(0.01),
        seeds=np.zeros(count, dtype=np.uint64),
        positions=np.zeros(count, dtype=np.int64),
        num_logprobs=np.full(count, 5, dtype=np.int64),
        forbidden={},
    )


def sampling_sequences(plan: StepPlan) -> list[Sequence]:
    """Return the plan's sequences that sample, in order."""
    return [sequence for sequence, samples in zip(plan.sequences, plan.samples, strict=True) if samples]
