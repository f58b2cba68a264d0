"""Run any decoder that transformers loads: its modelling code, with our paged attention as its attention function.

Flat token rows are one sequence of batch 1 with their positions; everything except attention works token by token,
which is checked at load.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.errors import UnsupportedModelError
from engine.models.config import CheckpointConfig
from engine.models.long_angles import hold_both_sets
from engine.models.paths import described_by
from engine.models.rotary import check_positions
from engine.models.step_model import KvCache, KvShape, ModelSizes, StepTensors, new_cache
from engine.models.transformers_attention import PAGED, attending
from engine.models.transformers_checks import AttentionLayer, check_logits, eager_logits, probe_tokens, trace_attention
from engine.models.transformers_loading import load_model, make_model, to_device
from kernels.paged import AttentionRule, PagedStep
from kernels.paged_attention import paged_attention
from kernels.write_kv import preferred_cache_dtype, write_kv

_PROBE_SEQUENCES, _PROBE_LENGTH, _PROBE_BLOCK_SIZE = 4, 4, 3
"""Every token of the probe is next to another sequence's or at the cut between two steps; blocks end elsewhere."""

_PROBE_PARTS = 3
"""One forward's hidden rows must give the logits of several parts."""

_MODEL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, NotImplementedError)
"""Errors of any model's code when it gets only token ids and positions."""


class TransformersDecoder:
    """Hold a model of transformers on a device and run steps through it; see `StepModel`."""

    products: str | None = None

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int,
        random_seed: int | None = None,
    ) -> None:
        """Load and check. Raises ModelLoadError, or UnsupportedModelError, which names what the engine lacks."""
        name = str(config.path)
        check_positions(config, max_positions=max_positions)
        self._dtype = dtype
        self._device = device
        if random_seed is None:
            self._model = to_device(load_model(config, dtype=dtype), device)
        else:
            self._model = make_model(config, dtype=dtype, device=device, seed=random_seed)
        try:
            limit = config.angles_change_after
            if limit is not None and limit < max_positions:
                hold_both_sets(self._model, name, change_after=limit, max_positions=max_positions)
            self._layers = trace_attention(self._model, name, max_positions=max_positions)
            self.kv_shapes: tuple[KvShape, ...] = tuple(layer.kv_shape for layer in self._layers)
            self.sizes = _sizes(self._model, self.kv_shapes)
            self._check(name)
        except _MODEL_ERRORS as error:
            raise UnsupportedModelError(
                f"{name}: transformers' code of {config.model_type} failed on a first few tokens "
                f"({type(error).__name__}: {error}); it needs more than token ids, or its "
                f"{described_by(config.path)} does not fit."
            ) from error

    def run(self, step: StepTensors, cache: KvCache, rows: Tensor) -> Tensor:
        """Run a step; see `StepModel`. The model's own code selects the rows before its head."""
        attention = _PagedAttention(self._layers, step.paged, cache)
        with attending(attention):
            logits = self._logits(step, rows)
        assert attention.num_calls == len(self._layers), "the model skipped attention layers"
        return logits

    def run_in_parts(self, step: StepTensors, cache: KvCache, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """Run a step; see `StepModel`: the layers for the first part, the model's own head for each one."""
        body = self._model.base_model
        if body is self._model:
            yield from (self.run(step, cache, rows) for rows in parts)
            return
        outputs: list[Any] = []
        hook = body.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
        try:
            for rows in parts:
                if not outputs:
                    yield self.run(step, cache, rows)
                    hook.remove()
                    continue
                with _answering(body, outputs[0]):
                    logits = self._logits(step, rows)
                yield logits
        finally:
            hook.remove()

    def _logits(self, step: StepTensors, rows: Tensor) -> Tensor:
        output = self._model(
            input_ids=step.token_ids[None],
            position_ids=step.paged.positions[None],
            use_cache=False,
            logits_to_keep=rows,
        )
        logits: Tensor = output.logits[0]
        return logits

    def capture_decodes(self, cache: KvCache, *, max_num_seqs: int, max_context_len: int) -> None:
        """Do nothing: the model's own code may read values or make tensors on the host, which no graph can replay."""

    def _check(self, name: str) -> None:
        """Compare a batch of several sequences that is cut in two steps with transformers' own attention."""
        tokens = probe_tokens(self._model.config, _PROBE_SEQUENCES * _PROBE_LENGTH)
        sequences = [tokens[start : start + _PROBE_LENGTH] for start in range(0, len(tokens), _PROBE_LENGTH)]
        expected = eager_logits(self._model, sequences)
        self._model.set_attn_implementation(PAGED)
        blocks = -(-_PROBE_LENGTH // _PROBE_BLOCK_SIZE)
        cache = new_cache(
            self.kv_shapes,
            num_blocks=1 + blocks * len(sequences),
            block_size=_PROBE_BLOCK_SIZE,
            dtype=preferred_cache_dtype(self._device.type, self._dtype),
            device=self._device,
        )
        cut = _PROBE_LENGTH // 2
        for span in (range(cut), range(cut, _PROBE_LENGTH)):
            step = _probe_step(sequences, span, blocks, self._device)
            rows = torch.arange(step.token_ids.shape[0], device=self._device)
            got = torch.cat(list(self.run_in_parts(step, cache, rows.chunk(_PROBE_PARTS))))
            logits = expected.view(len(sequences), _PROBE_LENGTH, -1)[:, span.start : span.stop].flatten(0, 1)
            check_logits(name, got=got, expected=logits)


class _PagedAttention:
    """Handle the attention calls of one step: write its keys and values, attend over the paged cache."""

    def __init__(self, layers: list[AttentionLayer], step: PagedStep, cache: KvCache) -> None:
        self._layers = layers
        self._step = step
        self._cache = cache
        self.num_calls = 0

    def attend(  # noqa: PLR0917  transformers' order
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        """Return `[1, tokens, heads, value_dim]`; the cache's window and order were decided at load."""
        del mask
        layer, cache = self._layers[self.num_calls], self._cache[self.num_calls]
        self.num_calls += 1
        assert layer.module is module, "the model called its attention layers in a different order than at load"
        width, scaling = layer.kv_shape.head_dim, options.get("scaling")
        # transformers' default scale is that of the unpadded query
        scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
        query, key, value = (_rows(part, width, query.dtype) for part in (query, key, value))
        write_kv(key, value, cache, self._step.slots)
        rule = AttentionRule(
            scale=scale, window=layer.window, soft_cap=options.get("softcap"), sinks=options.get("s_aux")
        )
        attended = paged_attention(query, cache, self._step, rule)
        return attended[None, ..., : layer.value_dim]

    def mask(self, options: dict[str, Any]) -> Tensor:
        """Never called: transformers makes no mask for a paged step."""
        raise AssertionError(f"transformers asked for a mask ({sorted(options)})")


def _sizes(model: Any, kv_shapes: tuple[KvShape, ...]) -> ModelSizes:
    num_heads = model.config.get_text_config(decoder=True).num_attention_heads
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    outside = {id(embedding), id(head)}
    inside = [weight for weight in model.parameters() if id(weight) not in outside]
    return ModelSizes(
        num_layer_weights=sum(weight.numel() for weight in inside),
        num_head_weights=head.numel(),
        num_layer_bytes=sum(weight.numel() * weight.itemsize for weight in inside),
        num_head_bytes=head.numel() * head.itemsize,
        attention_width=sum(num_heads * shape.head_dim for shape in kv_shapes),
    )


def _rows(part: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Turn `[1, heads, tokens, dim]` into `[tokens, heads, width]` with a contiguous last axis."""
    rows = part[0].transpose(0, 1).to(dtype)
    if rows.shape[2] < width:
        return functional.pad(rows, (0, width - rows.shape[2]))
    return rows if rows.stride(2) == 1 else rows.contiguous()


@contextmanager
def _answering(module: nn.Module, output: Any) -> Iterator[None]:
    """Make a module return an earlier output instead of computing; the caller's code around it runs."""
    module.forward = lambda *_given, **_options: output
    try:
        yield
    finally:
        del module.forward


def _probe_step(sequences: list[list[int]], span: range, blocks: int, device: torch.device) -> StepTensors:
    """Return a step that computes the tokens of this span of each sequence; each owns `blocks` blocks, in order."""
    count = len(sequences)
    positions = torch.arange(span.start, span.stop).repeat(count)
    firsts = (1 + torch.arange(count) * blocks) * _PROBE_BLOCK_SIZE
    return StepTensors(
        token_ids=torch.tensor([sequence[position] for sequence in sequences for position in span], device=device),
        paged=PagedStep(
            block_tables=(1 + torch.arange(count * blocks, dtype=torch.int32).view(count, blocks)).to(device),
            query_start=(torch.arange(count + 1, dtype=torch.int32) * len(span)).to(device),
            context_lens=torch.full((count,), span.stop, dtype=torch.int32, device=device),
            slots=(positions + firsts.repeat_interleave(len(span))).to(device),
            positions=positions.to(device),
            max_query_len=len(span),
            max_context_len=span.stop,
        ),
    )
