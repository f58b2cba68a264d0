"""The decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3 as configurations of one model.

Flat token rows in, hidden rows out, over a paged KV cache; knows no request, no scheduler, no sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.model_config import ModelConfig
from engine.rotary import rotary_table
from engine.weights import Checkpoint
from kernels.packed_linear import PackedLinear
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_and_write_kv import rope_and_write_kv
from kernels.silu_mul import silu_mul


@dataclass(slots=True, kw_only=True)
class StepTensors:
    """One step's inputs on the device.

    token_ids, positions, slots `[tokens]` int64 (slot −1: write nothing); block_tables `[seqs, max_blocks]`,
    query_start `[seqs + 1]`, context_lens `[seqs]` int32. The two maxima are host numbers, so that no launch waits.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    max_query_len: int
    max_context_len: int


KvCache = list[tuple[Tensor, Tensor]]
"""Per layer: keys and values, each `[num_blocks, num_kv_heads, block_size, head_dim]`."""


class Decoder:
    """Hold a model's weights on a device and run its layers."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device, max_positions: int) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._cos_sin = rotary_table(config, max_positions=max_positions).to(device)
        with Checkpoint(config.path, dtype=dtype) as checkpoint:
            reader = _Reader(checkpoint, device)
            shape = (config.vocab_size, config.hidden_size)
            self._embedding = reader.tensor("model.embed_tokens.weight", shape)
            self._layers = [_Layer(config, index, reader) for index in range(config.num_layers)]
            self._norm = reader.tensor("model.norm.weight", (config.hidden_size,))
            head = self._embedding if config.has_tied_embeddings else reader.tensor("lm_head.weight", shape)
            self._head = PackedLinear(head, None)

    def forward(self, step: StepTensors, cache: KvCache) -> tuple[Tensor, Tensor]:
        """Run every layer over `[tokens]`; return the last layer's output and the residual, `[tokens, hidden]` each."""
        x = functional.embedding(step.token_ids, self._embedding)
        residual: Tensor | None = None
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            x, residual = layer.forward(x, residual, step=step, keys=keys, values=values, cos_sin=self._cos_sin)
        assert residual is not None
        return x, residual

    def logits(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return `[rows, vocab]` in the model's dtype for rows picked from `forward`'s two results."""
        normed, _ = add_rms_norm(x, residual, self._norm, eps=self.config.rms_norm_eps)
        return self._head(normed)


class _Layer:
    """One decoder layer: attention and gated MLP, each after an RMSNorm fused with the residual addition."""

    def __init__(self, config: ModelConfig, index: int, reader: _Reader) -> None:
        self._config = config
        self._window = config.windows[index]
        self._scale = config.head_dim**-0.5
        prefix = f"model.layers.{index}"
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

    def forward(
        self, x: Tensor, residual: Tensor | None, *, step: StepTensors, keys: Tensor, values: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return this layer's MLP output and the residual stream it is to be added to, `[tokens, hidden]` each."""
        eps = self._config.rms_norm_eps
        if residual is None:
            normed, residual = rms_norm(x, self._input_norm, eps=eps), x
        else:
            normed, residual = add_rms_norm(x, residual, self._input_norm, eps=eps)
        attended = self._attend(normed, step=step, keys=keys, values=values, cos_sin=cos_sin)
        normed, residual = add_rms_norm(attended, residual, self._mlp_norm, eps=eps)
        return self._down(silu_mul(self._gate_up(normed))), residual

    def _attend(self, x: Tensor, *, step: StepTensors, keys: Tensor, values: Tensor, cos_sin: Tensor) -> Tensor:
        config = self._config
        query, key, value = torch.split_with_sizes(self._qkv(x), self._split, dim=-1)
        query = query.view(-1, config.num_heads, config.head_dim)
        key = key.view(-1, config.num_kv_heads, config.head_dim)
        value = value.view(-1, config.num_kv_heads, config.head_dim)
        if self._q_norm is not None and self._k_norm is not None:
            query = rms_norm(query, self._q_norm, eps=config.rms_norm_eps)
            key = rms_norm(key, self._k_norm, eps=config.rms_norm_eps)
        rope_and_write_kv(query, key, value, step.positions, cos_sin, keys, values, step.slots)
        attended = paged_attention(
            query,
            keys,
            values,
            step.block_tables,
            step.query_start,
            step.context_lens,
            scale=self._scale,
            window=self._window,
            max_query_len=step.max_query_len,
            max_context_len=step.max_context_len,
        )
        return self._output(attended.view(x.shape[0], -1))


class _Reader:
    """Read tensors from a checkpoint onto the device, joining those that are multiplied together."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._device = device

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._checkpoint.read(name, shape).to(self._device)

    def linear(self, parts: list[tuple[str, int]], size: int, *, has_bias: bool) -> Callable[[Tensor], Tensor]:
        """Return one linear layer whose output is the parts' outputs side by side."""
        weights = [self.tensor(f"{name}.weight", (width, size)) for name, width in parts]
        biases = [self.tensor(f"{name}.bias", (width,)) for name, width in parts] if has_bias else []
        return PackedLinear(_join(weights), _join(biases) if biases else None)


def _join(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
