"""Run one step on the device: copy the inputs, forward, sample.

`forward` and `sample` only start the device's work and do not wait for it, except for prompts' log-probabilities and
swapped blocks; the host waits when it reads the samples.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from engine.config import LoadFormat
from engine.device.choice import ResolvedConfig
from engine.device.host_cache import HostCache, seconds_per_block
from engine.device.memory import allocating, available_cpu_bytes, block_bytes, give_back_freed_memory, num_kv_blocks
from engine.device.transfer import upload, upload_together
from engine.errors import InvalidConfigError
from engine.grammars.masks import MaskWriter, RowMasks
from engine.loop.adapter_rows import adapter_rows
from engine.loop.batch import StepArrays, build_arrays
from engine.loop.pending import PendingTokens
from engine.loop.warm_up import powers_of_two, prompt_step, rows_of_every_kind
from engine.loop.work import WorkCounter
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.store import AdapterStore
from engine.models.config import CheckpointConfig, ModelConfig
from engine.models.decoder import Decoder
from engine.models.step_model import KvCache, StepModel, StepTensors, new_cache
from engine.sampling.sampler import Samples, sample
from engine.sampling.scoring import prompt_parts
from engine.sampling.table import SamplingTable
from engine.scheduling.plan import StepPlan
from engine.scheduling.seat_table import SeatTable
from engine.scheduling.swap import SwapRule, SwapSpace
from kernels.paged import PagedStep
from kernels.write_kv import preferred_cache_dtype

_MEASURED_TOKENS = 256
"""Prompt tokens in the step that measures the cost of recomputing a preempted sequence."""

_CPU_WARM_UP_TOKENS = 32
"""Enough to compile every kernel; on a CPU this step does not determine the memory."""

_MIN_SCORED_ROWS = 32
"""Minimum of prompt rows scored at once; otherwise as many as a full step samples, for which memory is reserved."""


class Runner:
    """Own the model, the KV cache and the step's buffers on one device."""

    def __init__(self, config: ResolvedConfig) -> None:
        settings, limits, model = config.asked, config.scheduler, config.model
        self.device = config.device
        if self.device.index is not None:
            torch.cuda.set_device(self.device)  # events, graphs and Triton's launches go to the current device
        self._config = config
        self._block_size = settings.block_size
        self._limits = limits
        if self.device.type == "cpu" and settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        with torch.inference_mode():
            self._model = load_model(
                model,
                dtype=config.dtype,
                device=self.device,
                max_positions=limits.max_model_len,
                random_seed=settings.seed if settings.load_format is LoadFormat.RANDOM else None,
            )
        self.products = self._model.products
        self._adapters = AdapterStore(model, dtype=config.dtype, device=self.device)
        self._cache_dtype = preferred_cache_dtype(self.device.type, config.dtype)
        if self.device.type == "cpu" and settings.warm_up and isinstance(self._model, Decoder):
            self._model.begin_to_compile(self._cache_dtype)
            self._warm_up_head(self._model)
        self._sampling = SamplingTable(limits.max_num_seqs)
        self._masks = MaskWriter(vocab_size=model.vocab_size, device=self.device)
        self._cache: KvCache = self._new_cache(2, setting="block_size")
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._profile()
        elif settings.warm_up:
            self._warm_up(min(_CPU_WARM_UP_TOKENS, limits.max_num_batched_tokens), num_rows=2)
        give_back_freed_memory()
        self.num_kv_blocks = num_kv_blocks(
            config,
            self._model.kv_shapes,
            free_bytes=self._free_bytes(),
            dtype=self._cache_dtype,
        )
        share = "cpu_memory_share" if self.device.type == "cpu" else "gpu_memory_share"
        self._cache = self._new_cache(
            self.num_kv_blocks + 1, setting=share if settings.num_kv_blocks is None else "num_kv_blocks"
        )
        if self.device.type == "cuda" and not settings.enforce_eager:
            with torch.inference_mode():
                self._model.capture_decodes(
                    self._cache, max_num_seqs=limits.max_num_seqs, max_context_len=limits.max_model_len
                )
        self.swap = self._new_swap_space()
        self.work = WorkCounter(
            self._model.sizes,
            kv_bytes_per_token=block_bytes(self._model.kv_shapes, block_size=1, dtype=self._cache_dtype),
        )

    @torch.inference_mode()
    def adapter(self, folder: str) -> Adapter:
        """Return an adapter, loaded if it is not. Raises InvalidRequestError if it cannot be used with the model."""
        return self._adapters.get(folder)

    @torch.inference_mode()
    def forward(self, plan: StepPlan, table: SeatTable, *, pending: PendingTokens | None = None) -> Tensor | None:
        """Start computing the plan; return its logits `[sampled rows, vocab]`, None if nothing is sampled.

        `pending` has the tokens of the step before that the plan counts and the host does not know yet.
        """
        self._copy_blocks(plan)
        arrays = build_arrays(
            plan,
            table,
            block_size=self._block_size,
            angles_change_after=self._limits.angles_change_after,
        )
        step, sampled_rows = self._to_device(arrays)
        if not self._adapters.is_empty:
            step.adapters = adapter_rows(plan, arrays.query_start, self.device)
        if pending is not None:
            pending.write(step.token_ids, arrays)
        parts = prompt_parts(plan, arrays.query_start, max_rows=max(_MIN_SCORED_ROWS, self._limits.max_num_seqs))
        if not parts:
            logits = self._model.run(step, self._cache, sampled_rows)
            return logits if sampled_rows.shape[0] else None
        row_groups = [upload(part.rows, self.device) for part in parts]
        if sampled_rows.shape[0]:
            row_groups.append(sampled_rows)
        several = self._model.run_in_parts(step, self._cache, row_groups)
        for part in parts:
            part.score(next(several))
        return next(several, None)

    @torch.inference_mode()
    def sample(self, plan: StepPlan, logits: Tensor | None, *, rows: list[int] | None = None) -> Samples | None:
        """Start drawing the plan's tokens from these `rows` of the logits, or all; all earlier tokens are known."""
        if logits is None or rows == []:
            return None
        if rows is not None:
            logits = logits.index_select(0, upload(np.array(rows), self.device))
        sampling = self._sampling.gather(plan)
        sampling.masks = self._masks.write(plan)  # on the host, while the device computes the step
        return sample(logits, sampling)

    def _copy_blocks(self, plan: StepPlan) -> None:
        """Copy preempted KV: out first, because this step may give its blocks to others."""
        if self._host_cache is not None:
            self._host_cache.copy_out(self._cache, plan.copies_out)
            self._host_cache.copy_in(self._cache, plan.copies_in)

    def _new_swap_space(self) -> SwapSpace | None:
        """Allocate host memory for preempted sequences, and measure when to use it. None if swapping is off."""
        swap_space_gib = self._config.asked.swap_space_gib
        self._host_cache = None
        if swap_space_gib == 0.0:
            return None
        size = block_bytes(self._model.kv_shapes, block_size=self._block_size, dtype=self._cache_dtype)
        num_blocks = int(swap_space_gib * 2**30) // size
        if num_blocks < 1:
            raise InvalidConfigError(
                f"swap_space_gib is {swap_space_gib:g} and one block of {self._block_size} tokens needs {size} "
                "bytes; give room for at least one, or 0 for none."
            )
        with allocating(f"a swap space of {swap_space_gib:g} GiB on the host", setting="swap_space_gib"):
            self._host_cache = HostCache(self._cache, num_blocks)
        rule = SwapRule(
            seconds_per_block=seconds_per_block(self._cache), seconds_per_token=self._seconds_per_prompt_token()
        )
        return SwapSpace(num_blocks, rule)

    @torch.inference_mode()
    def _seconds_per_prompt_token(self) -> float:
        num_tokens = min(_MEASURED_TOKENS, self._limits.max_num_batched_tokens, self._limits.max_model_len)
        seconds = []
        for _ in range(3):  # the first may compile
            start = time.perf_counter()
            self._run_prompts([num_tokens], num_sampled=1).cpu()
            seconds.append(time.perf_counter() - start)
        return min(seconds) / num_tokens

    def fill_cache(self, value: float) -> None:
        """Overwrite every block, for tests that stale content is never read."""
        for keys, values in self._cache:
            keys.fill_(value)
            values.fill_(value)

    def _to_device(self, arrays: StepArrays) -> tuple[StepTensors, Tensor]:
        """Return the step's inputs and its sampled rows on the device, uploaded in one copy."""
        wide = [arrays.token_ids, arrays.positions, arrays.slots, arrays.sampled_rows]
        narrow = [arrays.block_tables, arrays.query_start, arrays.context_lens]
        tensors = upload_together([*wide, *narrow], self.device)
        token_ids, positions, slots, sampled_rows, block_tables, query_start, context_lens = tensors
        step = StepTensors(
            token_ids=token_ids,
            paged=PagedStep(
                block_tables=block_tables,
                query_start=query_start,
                context_lens=context_lens,
                slots=slots,
                positions=positions,
                max_query_len=arrays.max_query_len,
                max_context_len=arrays.max_context_len,
                num_decodes=arrays.num_decodes,
            ),
        )
        return step, sampled_rows

    def _new_cache(self, num_blocks: int, *, setting: str) -> KvCache:
        """Allocate the blocks. Raises InvalidConfigError, which names `setting`, if they do not fit."""
        shapes, block_size, dtype = self._model.kv_shapes, self._block_size, self._cache_dtype
        gib = num_blocks * block_bytes(shapes, block_size=block_size, dtype=dtype) / 2**30
        what = f"a KV cache of {gib:.1f} GiB ({num_blocks} blocks of {block_size} tokens) on {self.device}"
        with allocating(what, setting=setting):
            return new_cache(shapes, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=self.device)

    def _profile(self) -> None:
        """Run the largest step that the limits allow, and others; raise InvalidConfigError if it does not fit."""
        limits = self._limits
        try:
            self._warm_up(limits.max_num_batched_tokens, num_rows=limits.max_sampled_rows)
            self._compile_other_steps()
        except torch.cuda.OutOfMemoryError as error:
            raise InvalidConfigError(
                f"A step of {limits.max_num_batched_tokens} tokens and {limits.max_num_seqs} sequences does not fit on "
                f"{self.device} beside the model. Lower max_num_batched_tokens or max_num_seqs, or free memory."
            ) from error

    @torch.inference_mode()
    def _warm_up(self, num_tokens: int, *, num_rows: int) -> None:
        """Compile everything that compiles on first use, and measure the memory of a full step with sampling."""
        longest = min(num_tokens, self._limits.max_model_len)
        full = [longest] * (num_tokens // longest)
        if num_tokens % longest:
            full.append(num_tokens % longest)
        for counts in (full, [1] * min(2, num_tokens), [longest - 1, 1] if longest > 1 else [1]):
            self._sample_every_way(self._run_prompts(counts, num_sampled=num_rows))

    @torch.inference_mode()
    def _warm_up_head(self, model: Decoder) -> None:
        """Compile what follows the layers first: the layers need attention, which another process may be compiling."""
        nothing = torch.zeros((2, model.config.hidden_size), dtype=model.dtype)
        self._sample_every_way(model.logits(nothing, nothing))

    def _sample_every_way(self, logits: Tensor) -> None:
        masks = RowMasks.of_everything(len(logits), vocab_size=logits.shape[-1], device=self.device)
        for params in rows_of_every_kind(len(logits), masks):
            sample(logits, params)

    @torch.inference_mode()
    def _compile_other_steps(self) -> None:
        """Run steps that have attention kernels of their own: short pieces of prompts, decodes of long contexts."""
        longest = min(self._limits.max_num_batched_tokens - 1, self._limits.max_model_len)
        for length in powers_of_two(2, longest):
            self._run_prompts([length, 1], num_sampled=1)
        for context_len in powers_of_two(256, self._limits.max_model_len):
            self._run_prompts([1], num_sampled=1, max_context_len=context_len)

    def _run_prompts(self, counts: list[int], *, num_sampled: int, max_context_len: int | None = None) -> Tensor:
        """Run a step of prompts of these lengths that writes nothing; return the logits of some of its rows."""
        arrays = prompt_step(counts, block_size=self._block_size, num_sampled=num_sampled)
        if max_context_len is not None:
            arrays.max_context_len = max_context_len
        inputs, rows = self._to_device(arrays)
        return self._model.run(inputs, self._cache, rows)

    def _free_bytes(self) -> int:
        if self.device.type == "cpu":
            return int(available_cpu_bytes() * self._config.asked.cpu_memory_share)
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        # The peak memory of the warm-up step is not in use now and must stay free for later steps.
        step_bytes = torch.cuda.max_memory_allocated(self.device) - torch.cuda.memory_allocated(self.device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return int(free - step_bytes - total * (1.0 - self._config.asked.gpu_memory_share))


def load_model(
    config: CheckpointConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_positions: int,
    random_seed: int | None = None,
) -> StepModel:
    """Load the weights into our own decoder, or into transformers' code if the configuration requires it.

    With `random_seed` the weights are generated from it on the device and only config.json is read.
    """
    if isinstance(config, ModelConfig):
        return Decoder(config, dtype=dtype, device=device, max_positions=max_positions, random_seed=random_seed)
    from engine.models.transformers_decoder import TransformersDecoder  # noqa: PLC0415 - a slow import our own does not need

    return TransformersDecoder(config, dtype=dtype, device=device, max_positions=max_positions, random_seed=random_seed)
