"""Compute a ModernBERT encoder over texts that lie end to end: token ids in, one hidden row per token out, on the CPU.

Layers are pre-norm with gated units; most see a window, every few the whole text, and both kinds have rotary positions
with their own base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.weights import Checkpoint
from engine.pooling.encoders.dtypes import Dtype
from engine.pooling.encoders.encoder_layers import EncoderLayers
from engine.pooling.encoders.encoder_weights import EncoderWeights, choose_for, find_prefix
from engine.pooling.encoders.layers import ACTIVATIONS, Attention, Linear, Norm, rotary_angles, sees_all, sees_near
from engine.pooling.encoders.modern_config import ModernConfig, Sight
from engine.pooling.encoders.text_step import TextStep
from kernels.activations import activate
from kernels.paged import AttentionRule, LayerCache, PagedStep

_WORDS = "embeddings.tok_embeddings.weight"
_NO_NORM = [0, 0]
"""In place of the addresses of a norm, which all layers name alike."""


class _Layer:
    """Attention and a gated feed-forward layer, each after a norm of the residual stream."""

    def __init__(
        self, weights: EncoderWeights, config: ModernConfig, index: int, angles: Mapping[float, Tensor]
    ) -> None:
        hidden, intermediate, name = config.hidden_size, config.intermediate_size, f"layers.{index}."
        self._attention_norm = _norm(weights, config, f"{name}attn_norm") if index else None
        """None in the first layer, whose rows come from a norm."""
        self._attention = Attention(
            query_key_value=weights.linear(f"{name}attn.Wqkv", 3 * hidden, hidden, has_bias=config.has_attention_bias),
            output=weights.linear(f"{name}attn.Wo", hidden, hidden, has_bias=config.has_attention_bias),
            num_heads=config.num_heads,
            rule=_rule(config, config.layers[index], in_float32=weights.is_in_float32),
            cos_sin=angles[config.layers[index].theta],
        )
        self._norm = _norm(weights, config, f"{name}mlp_norm")
        self._up_and_gate = weights.linear(f"{name}mlp.Wi", 2 * intermediate, hidden, has_bias=config.has_mlp_bias)
        self._activation = ACTIVATIONS[config.activation]
        self._down = weights.linear(f"{name}mlp.Wo", hidden, intermediate, has_bias=config.has_mlp_bias)

    @property
    def _linears(self) -> list[Linear]:
        return [*self._attention.linears, self._up_and_gate, self._down]

    @property
    def kind(self) -> object:
        """Equal for layers whose calls differ in addresses alone."""
        return self._attention.rule.window, self._attention_norm is None, *(linear.kind for linear in self._linears)

    @property
    def addresses(self) -> list[int] | None:
        """Addresses of the weights and angles; None if some of this layer's work goes through torch."""
        if not all(linear.is_compiled for linear in self._linears):
            return None
        assert self._attention.cos_sin is not None
        return [
            *(address for linear in self._linears for address in linear.addresses),
            *(_NO_NORM if self._attention_norm is None else self._attention_norm.addresses),
            *self._norm.addresses,
            self._attention.cos_sin.data_ptr(),
        ]

    def forward(self, x: Tensor, residual: Tensor, *, step: PagedStep, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """Return this layer's output and the residual stream to add it to, `[tokens, hidden]` each."""
        if self._attention_norm is None:
            normed, residual = x, x
        else:
            normed, residual = self._attention_norm.of_sum(x, residual)
        normed, residual = self._norm.of_sum(self._attention(normed, step, cache), residual)
        return self._down(activate(self._up_and_gate(normed), self._activation, is_gated=True)), residual


class ModernEncoder:
    """An encoder's weights, and its forward pass. Thread-safe."""

    def __init__(self, config: ModernConfig, dtype: Dtype) -> None:
        """Read the weights. Raises ModelLoadError if they do not belong to the configuration."""
        self.config = config
        self._dtype = dtype.of_rows
        hidden, head_size = config.hidden_size, config.hidden_size // config.num_heads
        angles = {
            theta: rotary_angles(theta=theta, head_size=head_size, length=config.max_tokens)
            for theta in {sight.theta for sight in config.layers}
        }
        products = choose_for(_shapes(config), dtype, config.path)
        with torch.inference_mode(), Checkpoint(config.path, dtype=torch.float32) as checkpoint:
            prefix = find_prefix(checkpoint, config.path, words=_WORDS, prefixes=("model.",))
            weights = EncoderWeights(checkpoint, prefix=prefix, dtype=dtype, products=products)
            self._words = weights.table(_WORDS, config.vocab_size, hidden)
            self._first_norm = _norm(weights, config, "embeddings.norm")
            layers = [_Layer(weights, config, index, angles) for index in range(len(config.layers))]
            self._last_norm = _norm(weights, config, "final_norm")
        self._layers = EncoderLayers(layers, num_heads=config.num_heads, head_size=head_size, dtype=self._dtype)

    @torch.inference_mode()
    def hidden_rows(self, texts: Sequence[Tensor], types: Sequence[Tensor] | None = None) -> Tensor:
        """Return the last norm's rows [tokens, hidden] of texts, each its token ids [length] int64, end to end.

        A ModernBERT has no `types`.
        """
        del types
        step = TextStep.of(texts)
        rows = self._first_norm(functional.embedding(step.token_ids, self._words))
        return self._last_norm.of_sum(*self._layers.run(rows, step))[0]


def _norm(weights: EncoderWeights, config: ModernConfig, name: str) -> Norm:
    return weights.norm(name, config.hidden_size, eps=config.norm_eps, has_bias=config.has_norm_bias)


def _rule(config: ModernConfig, sight: Sight, *, in_float32: bool) -> AttentionRule:
    head_size = config.hidden_size // config.num_heads
    if sight.window is None:
        return sees_all(head_size, in_float32=in_float32)
    return sees_near(head_size, sight.window, in_float32=in_float32)


def _shapes(config: ModernConfig) -> list[tuple[int, int]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    own = [(3 * hidden, hidden), (hidden, hidden), (2 * intermediate, hidden), (hidden, intermediate)]
    return own * len(config.layers)
