"""The decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3 as configurations of one model.

Flat token rows in, hidden rows out, over a paged KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from engine.models.adapters.adapter import Change, LayerChanges
from engine.models.asked_rows import AskedRows, asked_rows
from engine.models.config import ModelConfig
from engine.models.cpu_layers import cpu_layers
from engine.models.decode_graphs import CudaCapture, DecodeGraphs
from engine.models.layer_parts import LayerParts
from engine.models.layer_weights import Linear, WeightReader
from engine.models.random_weights import RandomWeights
from engine.models.rotary import rotary_table
from engine.models.step_model import KvCache, KvShape, ModelSizes, StepTensors
from engine.models.weights import Checkpoint
from kernels.cpu import begin_to_compile_attention
from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_write_kv import rope_and_write_kv
from kernels.silu_mul import silu_mul

Changes = Sequence[tuple[LayerChanges, Tensor | None]]
"""What adapters change in a layer, each with the rows of its tokens; None for all."""


class Decoder:
    """Hold a model's weights on a device and run its layers."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int,
        random_seed: int | None = None,
        has_head: bool = True,
        is_shared: bool = False,
        has_steps: bool = True,
    ) -> None:
        """Read the weights; those of the output matrix only with `has_head`.

        `is_shared`: several threads run it at once, each over a cache of its own, and therefore layer by layer.
        `has_steps`: whether it decodes; otherwise it runs over whole texts only.
        """
        self.config = config
        self.dtype = dtype
        self.device = device
        self._cos_sin = rotary_table(config, max_positions=max_positions).to(device)
        with _open_weights(config, dtype=dtype, device=device, random_seed=random_seed) as weights:
            reader = WeightReader(weights, config, dtype=dtype, device=device, has_head=has_head, has_steps=has_steps)
            self.products = reader.products
            self._head = reader.linear(reader.head) if has_head else None  # the largest first, in an empty memory
            self._embed: Callable[[Tensor], Tensor]
            if self._head is not None and config.has_tied_embeddings and self._head.has_rows:
                self._embed = self._head.rows  # store the weight only once
            else:
                self._embed = reader.rows(reader.embedding)
            self._layers = [_Layer(config, index, reader) for index in range(config.num_layers)]
            self._norm = reader.norm()
        self._at_once = None if is_shared else cpu_layers(self._layers)
        self._graphs: DecodeGraphs | None = None
        self.kv_shapes = (KvShape(num_heads=config.num_kv_heads, head_dim=config.head_dim),) * config.num_layers
        self.sizes = self._sizes()

    def _sizes(self) -> ModelSizes:
        config = self.config
        linears = [linear for layer in self._layers for linear in layer.linears]
        num_head_weights = config.vocab_size * config.hidden_size
        return ModelSizes(
            num_layer_weights=sum(linear.out_features * linear.in_features for linear in linears),
            num_head_weights=num_head_weights,
            num_layer_bytes=sum(linear.num_bytes for linear in linears),
            num_head_bytes=num_head_weights * self.dtype.itemsize if self._head is None else self._head.num_bytes,
            attention_width=config.num_layers * config.num_heads * config.head_dim,
        )

    def begin_to_compile(self, cache_dtype: torch.dtype) -> None:
        """On a CPU, start to compile attention in another process, unless it is compiled already."""
        in_float32 = self._layers[0].rule.in_float32
        begin_to_compile_attention(self.dtype, cache_dtype, self.config.head_dim, in_float32=in_float32)

    def run(self, step: StepTensors, cache: KvCache, rows: Tensor) -> Tensor:
        """Run a step; see `StepModel`."""
        hidden = None if self._graphs is None or step.adapters else self._graphs.run(step)
        x, residual = self.forward(step, cache, rows) if hidden is None else hidden
        if not rows.shape[0]:
            return x.new_empty((0, self.config.vocab_size))
        if rows.shape[0] < x.shape[0]:
            x, residual = x.index_select(0, rows), residual.index_select(0, rows)
        return self.logits(x, residual)

    def run_in_parts(self, step: StepTensors, cache: KvCache, parts: Iterable[Tensor]) -> Iterator[Tensor]:
        """Run a step; see `StepModel`."""
        x, residual = self.forward(step, cache)
        for rows in parts:
            yield self.logits(x[rows], residual[rows])

    def capture_decodes(self, cache: KvCache, *, max_num_seqs: int, max_context_len: int) -> None:
        """Capture decode steps; see `StepModel`."""
        self._graphs = DecodeGraphs(
            lambda step: self.forward(step, cache),
            max_num_seqs=max_num_seqs,
            max_context_len=max_context_len,
            block_size=cache[0].keys.shape[2],
            device=self.device,
            capture=CudaCapture(),
        )

    def forward(self, step: StepTensors, cache: KvCache, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run every layer over `[tokens]`; return the last layer's output and the residual, `[tokens, hidden]` each.

        If `rows` are few of the tokens, the results may cover only these, `[rows, hidden]`. On a CPU the next call may
        overwrite them.
        """
        x, paged = self._embed(step.token_ids), step.paged

        def run_layer(
            index: int, x: Tensor, residual: Tensor | None, step: PagedStep, selection: AskedRows | None = None
        ) -> tuple[Tensor, Tensor]:
            layer, cached = self._layers[index], cache[index]
            return layer.forward(
                x,
                residual,
                step=step,
                cache=cached,
                cos_sin=self._cos_sin,
                selection=selection,
                changes=[(each.adapter.layers[index], each.rows) for each in adapters],
            )

        adapters = step.adapters
        selection = None if rows is None or adapters else asked_rows(paged, rows)
        count = len(self._layers) if selection is None else len(self._layers) - 1
        at_once = None if adapters else self._at_once
        result = None if at_once is None else at_once.run(run_layer, x, paged, cache, num_layers=count)
        residual: Tensor | None = None
        if result is not None:
            x, residual = result
        else:
            for index in range(count):
                x, residual = run_layer(index, x, residual, paged)
        if selection is not None:
            x, residual = run_layer(count, x, residual, paged, selection)
        assert residual is not None
        return x, residual

    def logits(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return `[rows, vocab]` for rows selected from `forward`'s two results.

        In fp32 if that is free: in bf16 logits from 16 to 32 are multiples of 1/8, and one token in 17 is a tie.
        """
        assert self._head is not None, "the model was loaded without a head"
        return self._head.unrounded(self.normed(x, residual))

    def normed(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the last hidden rows `[rows, hidden]` for rows selected from `forward`'s two results."""
        return add_rms_norm(x, residual, self._norm, eps=self.config.rms_norm_eps)[0]


def _open_weights(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device, random_seed: int | None
) -> AbstractContextManager[Checkpoint | RandomWeights]:
    if random_seed is None:
        return Checkpoint(config.path, dtype=dtype, quantization=config.quantization, is_part=config.is_part)
    return nullcontext(RandomWeights(random_seed, dtype=dtype, device=device))


class _Layer:
    """One decoder layer: attention and gated MLP, each after an RMSNorm fused with the residual addition."""

    def __init__(self, config: ModelConfig, index: int, reader: WeightReader) -> None:
        self._config = config
        self.rule = AttentionRule(
            scale=config.head_dim**-0.5, window=config.windows[index], in_float32=reader.is_in_float32
        )
        prefix, hidden = reader.prefix_of(index), config.hidden_size
        parts = LayerParts.of(config, prefix)
        self._split = [width for _, width in parts.qkv.parts]
        self._qkv, self._output, self._gate_up, self._down = map(reader.linear, parts.all)
        self._input_norm = reader.tensor(f"{prefix}.input_layernorm.weight", (hidden,))
        self._mlp_norm = reader.tensor(f"{prefix}.post_attention_layernorm.weight", (hidden,))
        self._q_norm = self._k_norm = None
        if config.has_qk_norm:
            self._q_norm = reader.tensor(f"{prefix}.self_attn.q_norm.weight", (config.head_dim,))
            self._k_norm = reader.tensor(f"{prefix}.self_attn.k_norm.weight", (config.head_dim,))

    @property
    def kind(self) -> object:
        """Equal for layers whose calls differ in addresses alone: of one window, with weights multiplied alike."""
        return self.rule.window, *(linear.kind for linear in self.linears)

    @property
    def linears(self) -> list[Linear]:
        """The layers of its weights."""
        return [self._qkv, self._output, self._gate_up, self._down]

    @property
    def addresses(self) -> list[int] | None:
        """Addresses of the weights; None if some of this layer's work goes through torch."""
        if not all(linear.is_compiled for linear in self.linears):
            return None
        norms = [self._input_norm, self._mlp_norm, self._q_norm, self._k_norm]
        addresses = [norm.data_ptr() for norm in norms if norm is not None]
        return addresses + [address for linear in self.linears for address in linear.addresses]

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        *,
        step: PagedStep,
        cache: LayerCache,
        cos_sin: Tensor,
        selection: AskedRows | None = None,
        changes: Changes = (),
    ) -> tuple[Tensor, Tensor]:
        """Return this layer's MLP output and the residual stream to add it to, `[tokens, hidden]` each.

        With `selection` only for its rows, `[rows, hidden]` each; all keys and values are written. With `changes`, of
        adapters, there must be no selection.
        """
        eps = self._config.rms_norm_eps
        if residual is None:
            normed, residual = rms_norm(x, self._input_norm, eps=eps), x
        else:
            normed, residual = add_rms_norm(x, residual, self._input_norm, eps=eps)
        if selection is not None:
            residual = residual.index_select(0, selection.rows)
        attended = self._attend(normed, step=step, cache=cache, cos_sin=cos_sin, selection=selection, changes=changes)
        normed, residual = add_rms_norm(attended, residual, self._mlp_norm, eps=eps)
        gated = silu_mul(_changed(self._gate_up(normed), normed, [(each.gate_up, rows) for each, rows in changes]))
        return _changed(self._down(gated), gated, [(each.down, rows) for each, rows in changes]), residual

    def _attend(
        self,
        x: Tensor,
        *,
        step: PagedStep,
        cache: LayerCache,
        cos_sin: Tensor,
        selection: AskedRows | None,
        changes: Changes,
    ) -> Tensor:
        config = self._config
        qkv = _changed(self._qkv(x), x, [(each.qkv, rows) for each, rows in changes])
        query, key, value = torch.split_with_sizes(qkv, self._split, dim=-1)
        query = query.view(-1, config.num_heads, config.head_dim)
        key = key.view(-1, config.num_kv_heads, config.head_dim)
        value = value.view(-1, config.num_kv_heads, config.head_dim)
        if self._q_norm is not None and self._k_norm is not None:
            query = rms_norm(query, self._q_norm, eps=config.rms_norm_eps)
            key = rms_norm(key, self._k_norm, eps=config.rms_norm_eps)
        rope_and_write_kv(query, key, value, cos_sin, cache, step)
        if selection is not None:
            query, step = query.index_select(0, selection.rows), selection.step
        attended = paged_attention(query, cache, step, self.rule)
        attended = attended.flatten(1)
        return _changed(self._output(attended), attended, [(each.output, rows) for each, rows in changes])


def _changed(y: Tensor, x: Tensor, changes: Sequence[tuple[Change | None, Tensor | None]]) -> Tensor:
    """Add what adapters change of the product of x to y, in place."""
    for change, rows in changes:
        if change is not None:
            change.add_to(y, x, rows)
    return y
