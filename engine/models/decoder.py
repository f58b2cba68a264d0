"""The decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3 as configurations of one model.

Flat token rows in, hidden rows out, over a paged KV cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.asked_rows import AskedRows, asked_rows
from engine.models.config import ModelConfig
from engine.models.cpu_layers import cpu_layers
from engine.models.decode_graphs import CudaCapture, DecodeGraphs
from engine.models.random_weights import RandomWeights
from engine.models.rotary import rotary_table
from engine.models.step_model import KvCache, KvShape, ModelSizes, StepTensors
from engine.models.weights import Checkpoint
from kernels.choice.products import ProductChoice, choose_products
from kernels.choice.weighing import WeightShape
from kernels.cpu import begin_to_compile_attention
from kernels.packed_linear import PackedLinear
from kernels.paged import AttentionRule, LayerCache, PagedStep
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_write_kv import rope_and_write_kv
from kernels.silu_mul import silu_mul


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
    ) -> None:
        """Read the weights; those of the output matrix only with `has_head`.

        `is_shared`: several threads run it at once, each over a cache of its own, and therefore layer by layer.
        """
        self.config = config
        self.dtype = dtype
        self.device = device
        self._cos_sin = rotary_table(config, max_positions=max_positions).to(device)
        with _open_weights(config, dtype=dtype, device=device, random_seed=random_seed) as weights:
            shapes = _weight_shapes(config, has_head=has_head)
            choice = choose_products(shapes, dtype) if device.type == "cpu" else None
            self.products = None if choice is None else str(choice)
            reader = _Reader(weights, device, choice)
            shape = (config.vocab_size, config.hidden_size)
            embedding = reader.weight(f"{reader.prefix}embed_tokens.weight", shape)
            self._layers = [_Layer(config, index, reader) for index in range(config.num_layers)]
            self._norm = reader.tensor(f"{reader.prefix}norm.weight", (config.hidden_size,))
            self._head: PackedLinear | None = None
            if has_head:
                head = embedding if config.has_tied_embeddings else reader.weight("lm_head.weight", shape)
                self._head = reader.packed(head, None)
            self._embed: Callable[[Tensor], Tensor]
            if self._head is not None and config.has_tied_embeddings and self._head.has_rows:
                self._embed = self._head.rows  # store the weight only once
            else:
                self._embed = partial(functional.embedding, weight=reader.kept(embedding))
        self._at_once = None if is_shared else cpu_layers(self._layers)
        self._graphs: DecodeGraphs | None = None
        self.kv_shapes = (KvShape(num_heads=config.num_kv_heads, head_dim=config.head_dim),) * config.num_layers
        self.sizes = _sizes(config)

    def begin_to_compile(self, cache_dtype: torch.dtype) -> None:
        """On a CPU, start to compile attention in another process, unless it is compiled already."""
        in_float32 = self._layers[0].rule.in_float32
        begin_to_compile_attention(self.dtype, cache_dtype, self.config.head_dim, in_float32=in_float32)

    def run(self, step: StepTensors, cache: KvCache, rows: Tensor) -> Tensor:
        """Run a step; see `StepModel`."""
        hidden = None if self._graphs is None else self._graphs.run(step)
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
            return layer.forward(x, residual, step=step, cache=cached, cos_sin=self._cos_sin, selection=selection)

        selection = None if rows is None else asked_rows(paged, rows)
        count = len(self._layers) if selection is None else len(self._layers) - 1
        result = None if self._at_once is None else self._at_once.run(run_layer, x, paged, cache, num_layers=count)
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

    def __init__(self, config: ModelConfig, index: int, reader: _Reader) -> None:
        self._config = config
        self.rule = AttentionRule(
            scale=config.head_dim**-0.5, window=config.windows[index], in_float32=reader.is_in_float32
        )
        prefix = f"{reader.prefix}layers.{index}"
        hidden, ffn = config.hidden_size, config.intermediate_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._split = [queries, keys, keys]
        attention = f"{prefix}.self_attn"
        self._qkv = reader.linear(
            [(f"{attention}.q_proj", queries), (f"{attention}.k_proj", keys), (f"{attention}.v_proj", keys)],
            hidden,
            has_bias=config.has_qkv_bias,
        )
        self._output = reader.linear([(f"{attention}.o_proj", hidden)], queries, has_bias=config.has_output_bias)
        self._gate_up = reader.linear(
            [(f"{prefix}.mlp.gate_proj", ffn), (f"{prefix}.mlp.up_proj", ffn)], hidden, has_bias=config.has_mlp_bias
        )
        self._down = reader.linear([(f"{prefix}.mlp.down_proj", hidden)], ffn, has_bias=config.has_mlp_bias)
        self._input_norm = reader.tensor(f"{prefix}.input_layernorm.weight", (hidden,))
        self._mlp_norm = reader.tensor(f"{prefix}.post_attention_layernorm.weight", (hidden,))
        self._q_norm = self._k_norm = None
        if config.has_qk_norm:
            self._q_norm = reader.tensor(f"{attention}.q_norm.weight", (config.head_dim,))
            self._k_norm = reader.tensor(f"{attention}.k_norm.weight", (config.head_dim,))

    @property
    def window(self) -> int | None:
        """The sliding window, the only number in which layers differ."""
        return self.rule.window

    @property
    def addresses(self) -> list[int] | None:
        """Addresses of the weights; None if some of this layer's work goes through torch."""
        linears = [self._qkv, self._output, self._gate_up, self._down]
        if not all(linear.is_compiled for linear in linears):
            return None
        norms = [self._input_norm, self._mlp_norm, self._q_norm, self._k_norm]
        addresses = [norm.data_ptr() for norm in norms if norm is not None]
        return addresses + [address for linear in linears for address in linear.addresses]

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        *,
        step: PagedStep,
        cache: LayerCache,
        cos_sin: Tensor,
        selection: AskedRows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return this layer's MLP output and the residual stream to add it to, `[tokens, hidden]` each.

        With `selection` only for its rows, `[rows, hidden]` each; all keys and values are written.
        """
        eps = self._config.rms_norm_eps
        if residual is None:
            normed, residual = rms_norm(x, self._input_norm, eps=eps), x
        else:
            normed, residual = add_rms_norm(x, residual, self._input_norm, eps=eps)
        if selection is not None:
            residual = residual.index_select(0, selection.rows)
        attended = self._attend(normed, step=step, cache=cache, cos_sin=cos_sin, selection=selection)
        normed, residual = add_rms_norm(attended, residual, self._mlp_norm, eps=eps)
        return self._down(silu_mul(self._gate_up(normed))), residual

    def _attend(
        self, x: Tensor, *, step: PagedStep, cache: LayerCache, cos_sin: Tensor, selection: AskedRows | None
    ) -> Tensor:
        config = self._config
        query, key, value = torch.split_with_sizes(self._qkv(x), self._split, dim=-1)
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
        return self._output(attended.flatten(1))


class _Reader:
    """Read tensors from a checkpoint onto the device, joining those that are multiplied together."""

    def __init__(self, weights: Checkpoint | RandomWeights, device: torch.device, choice: ProductChoice | None) -> None:
        self._weights = weights
        self._device = device
        self._choice = choice
        is_bare = isinstance(weights, Checkpoint) and "embed_tokens.weight" in weights
        self.prefix = "" if is_bare else "model."
        """Prefix of all names except the head's: a file that was written without a head has none."""

    @property
    def is_in_float32(self) -> bool:
        """Whether this CPU multiplies bf16 faster in fp32, as measured for the layers' weights."""
        return self._choice is not None and self._choice.is_in_float32

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor to keep."""
        return self.kept(self._weights.read(name, shape))

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor to derive another one from: on a CPU it may be a view of the file."""
        return self._weights.read(name, shape).to(self._device)

    def kept(self, tensor: Tensor) -> Tensor:
        """Return a copy in memory of its own: a view of the file keeps it mapped, and changes as the file does."""
        return tensor.to(self._device, copy=self._device.type == "cpu")

    def linear(self, parts: list[tuple[str, int]], size: int, *, has_bias: bool) -> PackedLinear:
        """Return one linear layer whose output is the parts' outputs side by side."""
        weights = [self.weight(f"{name}.weight", (width, size)) for name, width in parts]
        biases = [self.tensor(f"{name}.bias", (width,)) for name, width in parts] if has_bias else []
        return self.packed(_join(weights), _join(biases) if biases else None)

    def packed(self, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        """Return the layer of a weight `[out, in]`, with the product chosen for its shape."""
        product = None if self._choice is None else self._choice.of(weight.shape[0], weight.shape[1])
        return PackedLinear(weight, bias, product=product)


def _weight_shapes(config: ModelConfig, *, has_head: bool) -> list[WeightShape]:
    hidden, ffn, queries = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    counts = Counter([(queries + 2 * keys, hidden), (hidden, queries), (2 * ffn, hidden), (hidden, ffn)])
    head = [WeightShape(width=config.vocab_size, depth=hidden, count=1, is_in_layers=False)]
    return [
        *(
            WeightShape(width=width, depth=depth, count=count * config.num_layers, is_in_layers=True)
            for (width, depth), count in counts.items()
        ),
        *(head if has_head else []),
    ]


def _sizes(config: ModelConfig) -> ModelSizes:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (2 * queries + 2 * keys)
    return ModelSizes(
        num_layer_weights=config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size),
        num_head_weights=config.vocab_size * config.hidden_size,
        attention_width=config.num_layers * queries,
    )


def _join(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
