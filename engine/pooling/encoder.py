"""Compute a BERT encoder over packed texts: token ids in, one hidden row per token out, in fp32 on the CPU.

There is no padding and no mask: texts of one length are attended together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.weights import Checkpoint
from engine.pooling.encoder_config import EncoderConfig
from engine.pooling.encoder_weights import EncoderWeights, find_prefix
from engine.pooling.layers import ACTIVATIONS, Linear, Norm, attend

_WORDS = "embeddings.word_embeddings.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    query_key_value: Linear
    output: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    norm: Norm


class Encoder:
    """An encoder's weights, and its forward pass."""

    def __init__(self, config: EncoderConfig) -> None:
        """Read the weights. Raises ModelLoadError if they do not belong to the configuration."""
        self.config = config
        self._activation = ACTIVATIONS[config.activation]
        hidden = config.hidden_size
        with Checkpoint(config.path, dtype=torch.float32) as checkpoint:
            prefix = find_prefix(checkpoint, config.path, words=_WORDS, prefixes=("bert.", "roberta."))
            weights = EncoderWeights(checkpoint, prefix=prefix)
            self._words = weights.read(_WORDS, config.vocab_size, hidden)
            self._positions = weights.read("embeddings.position_embeddings.weight", config.num_positions, hidden)
            self._types = weights.read("embeddings.token_type_embeddings.weight", config.num_token_types, hidden)
            self._norm = weights.norm("embeddings.LayerNorm", hidden, eps=config.norm_eps)
            self._layers = [_layer(weights, config, f"encoder.layer.{index}.") for index in range(config.num_layers)]

    @torch.inference_mode()
    def hidden_rows(self, texts: Sequence[Tensor], types: Sequence[Tensor] | None = None) -> Tensor:
        """Return the last layer's rows [tokens, hidden] of texts, each its token ids [length] int64, end to end.

        `types` gives for each token its part of a pair; a single text has no second part. Texts of one length should
        follow each other: each such run is one call of attention per layer.
        """
        lengths = [len(text) for text in texts]
        positions = torch.cat([self._positions_of(text) for text in texts])
        typed = self._types[0] if types is None else self._types[torch.cat(list(types))]
        rows = self._norm(F.embedding(torch.cat(list(texts)), self._words) + typed + self._positions[positions])
        for layer in self._layers:
            attended = attend(layer.query_key_value(rows), lengths, num_heads=self.config.num_heads)
            rows = layer.attention_norm(rows + layer.output(attended))
            rows = layer.norm(rows + layer.down(self._activation(layer.up(rows))))
        return rows

    def _positions_of(self, text: Tensor) -> Tensor:
        padding_id = self.config.padding_id
        if padding_id is None:
            return torch.arange(len(text))
        counts = text != padding_id
        return counts.cumsum(0) * counts + padding_id


def _layer(weights: EncoderWeights, config: EncoderConfig, name: str) -> _Layer:
    hidden, intermediate, eps = config.hidden_size, config.intermediate_size, config.norm_eps
    parts = [weights.linear(f"{name}attention.self.{part}", hidden, hidden) for part in ("query", "key", "value")]
    return _Layer(
        query_key_value=Linear(
            weight=torch.cat([part.weight for part in parts]),
            bias=torch.cat([part.bias for part in parts if part.bias is not None]),
        ),
        output=weights.linear(f"{name}attention.output.dense", hidden, hidden),
        attention_norm=weights.norm(f"{name}attention.output.LayerNorm", hidden, eps=eps),
        up=weights.linear(f"{name}intermediate.dense", intermediate, hidden),
        down=weights.linear(f"{name}output.dense", hidden, intermediate),
        norm=weights.norm(f"{name}output.LayerNorm", hidden, eps=eps),
    )
