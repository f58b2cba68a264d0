"""Compute a ModernBERT encoder over packed texts: token ids in, one hidden row per token out, in fp32 on the CPU.

Layers are pre-norm with gated units; most see a window, every few the whole text, and both kinds have rotary positions
with their own base.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.weights import Checkpoint
from engine.pooling.encoder_weights import EncoderWeights, find_prefix
from engine.pooling.layers import ACTIVATIONS, Linear, Norm, attend, make_rotation
from engine.pooling.modern_config import ModernConfig

_WORDS = "embeddings.tok_embeddings.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    attention_norm: Norm | None
    """None in the first layer, whose rows come from a norm."""
    query_key_value: Linear
    output: Linear
    norm: Norm
    up_and_gate: Linear
    down: Linear


class ModernEncoder:
    """An encoder's weights, and its forward pass."""

    def __init__(self, config: ModernConfig) -> None:
        """Read the weights. Raises ModelLoadError if they do not belong to the configuration."""
        self.config = config
        self._activation = ACTIVATIONS[config.activation]
        hidden = config.hidden_size
        with Checkpoint(config.path, dtype=torch.float32) as checkpoint:
            prefix = find_prefix(checkpoint, config.path, words=_WORDS, prefixes=("model.",))
            weights = EncoderWeights(checkpoint, prefix=prefix)
            self._words = weights.read(_WORDS, config.vocab_size, hidden)
            self._first_norm = _norm(weights, config, "embeddings.norm")
            self._layers = [_layer(weights, config, index) for index in range(len(config.layers))]
            self._last_norm = _norm(weights, config, "final_norm")

    @torch.inference_mode()
    def hidden_rows(self, texts: Sequence[Tensor], types: Sequence[Tensor] | None = None) -> Tensor:
        """Return the last norm's rows [tokens, hidden] of texts, each its token ids [length] int64, end to end.

        A ModernBERT has no `types`.
        """
        del types
        config, lengths = self.config, [len(text) for text in texts]
        rotations = {
            theta: make_rotation(theta=theta, head_size=config.hidden_size // config.num_heads, length=max(lengths))
            for theta in {sight.theta for sight in config.layers}
        }
        rows = self._first_norm(F.embedding(torch.cat(list(texts)), self._words))
        for layer, sight in zip(self._layers, config.layers, strict=True):
            normed = rows if layer.attention_norm is None else layer.attention_norm(rows)
            attended = attend(
                layer.query_key_value(normed),
                lengths,
                num_heads=config.num_heads,
                rotation=rotations[sight.theta],
                window=sight.window,
            )
            rows = rows + layer.output(attended)
            up, gate = layer.up_and_gate(layer.norm(rows)).chunk(2, dim=-1)
            rows = rows + layer.down(self._activation(up) * gate)
        return self._last_norm(rows)


def _norm(weights: EncoderWeights, config: ModernConfig, name: str) -> Norm:
    return weights.norm(name, config.hidden_size, eps=config.norm_eps, has_bias=config.has_norm_bias)


def _layer(weights: EncoderWeights, config: ModernConfig, index: int) -> _Layer:
    hidden, intermediate, name = config.hidden_size, config.intermediate_size, f"layers.{index}."
    has_bias, has_mlp_bias = config.has_attention_bias, config.has_mlp_bias
    return _Layer(
        attention_norm=_norm(weights, config, f"{name}attn_norm") if index else None,
        query_key_value=weights.linear(f"{name}attn.Wqkv", 3 * hidden, hidden, has_bias=has_bias),
        output=weights.linear(f"{name}attn.Wo", hidden, hidden, has_bias=has_bias),
        norm=_norm(weights, config, f"{name}mlp_norm"),
        up_and_gate=weights.linear(f"{name}mlp.Wi", 2 * intermediate, hidden, has_bias=has_mlp_bias),
        down=weights.linear(f"{name}mlp.Wo", hidden, intermediate, has_bias=has_mlp_bias),
    )
