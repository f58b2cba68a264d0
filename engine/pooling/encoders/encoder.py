"""Compute a BERT encoder over texts that lie end to end: token ids in, one hidden row per token out, on the CPU.

There is no padding and no mask: each token attends to its own text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.weights import Checkpoint
from engine.pooling.encoders.dtypes import Dtype
from engine.pooling.encoders.encoder_config import EncoderConfig
from engine.pooling.encoders.encoder_layers import EncoderLayers
from engine.pooling.encoders.encoder_weights import EncoderWeights, choose_for, find_prefix
from engine.pooling.encoders.layers import ACTIVATIONS, Attention, Linear, sees_all
from engine.pooling.encoders.text_step import TextStep
from kernels.activations import activate
from kernels.paged import LayerCache, PagedStep

_WORDS = "embeddings.word_embeddings.weight"


class _Layer:
    """Attention and a feed-forward layer, each followed by a norm of its output and its input."""

    def __init__(self, weights: EncoderWeights, config: EncoderConfig, name: str) -> None:
        hidden, intermediate, eps = config.hidden_size, config.intermediate_size, config.norm_eps
        attention = [f"{name}attention.self.{part}" for part in ("query", "key", "value")]
        self._attention = Attention(
            query_key_value=weights.linear(attention, 3 * hidden, hidden),
            output=weights.linear(f"{name}attention.output.dense", hidden, hidden),
            num_heads=config.num_heads,
            rule=sees_all(hidden // config.num_heads, in_float32=weights.is_in_float32),
        )
        self._attention_norm = weights.norm(f"{name}attention.output.LayerNorm", hidden, eps=eps)
        self._up = weights.linear(f"{name}intermediate.dense", intermediate, hidden)
        self._activation = ACTIVATIONS[config.activation]
        self._down = weights.linear(f"{name}output.dense", hidden, intermediate)
        self._norm = weights.norm(f"{name}output.LayerNorm", hidden, eps=eps)

    @property
    def _linears(self) -> list[Linear]:
        return [*self._attention.linears, self._up, self._down]

    @property
    def kind(self) -> object:
        """Equal for layers whose calls differ in addresses alone."""
        return tuple(linear.kind for linear in self._linears)

    @property
    def addresses(self) -> list[int] | None:
        """Addresses of the weights; None if some of this layer's work goes through torch."""
        if not all(linear.is_compiled for linear in self._linears):
            return None
        return [
            *(address for linear in self._linears for address in linear.addresses),
            *(address for norm in (self._attention_norm, self._norm) for address in norm.addresses),
        ]

    def forward(self, x: Tensor, residual: Tensor, *, step: PagedStep, cache: LayerCache) -> tuple[Tensor, Tensor]:
        """Return this layer's output `[tokens, hidden]`, and `residual`, which it does not use."""
        attended, _ = self._attention_norm.of_sum(self._attention(x, step, cache), x)
        output = self._down(activate(self._up(attended), self._activation))
        return self._norm.of_sum(output, attended)[0], residual


class Encoder:
    """An encoder's weights, and its forward pass. Thread-safe."""

    def __init__(self, config: EncoderConfig, dtype: Dtype) -> None:
        """Read the weights. Raises ModelLoadError if they do not belong to the configuration."""
        self.config = config
        self._dtype = dtype.of_rows
        hidden = config.hidden_size
        products = choose_for(_shapes(config), dtype, config.path)
        with torch.inference_mode(), Checkpoint(config.path, dtype=torch.float32) as checkpoint:
            prefix = find_prefix(checkpoint, config.path, words=_WORDS, prefixes=("bert.", "roberta."))
            weights = EncoderWeights(checkpoint, prefix=prefix, dtype=dtype, products=products)
            self._words = weights.table(_WORDS, config.vocab_size, hidden)
            self._positions = weights.read("embeddings.position_embeddings.weight", config.num_positions, hidden)
            self._types = weights.read("embeddings.token_type_embeddings.weight", config.num_token_types, hidden)
            self._norm = weights.norm("embeddings.LayerNorm", hidden, eps=config.norm_eps)
            layers = [_Layer(weights, config, f"encoder.layer.{index}.") for index in range(config.num_layers)]
        head_size = hidden // config.num_heads
        self._layers = EncoderLayers(layers, num_heads=config.num_heads, head_size=head_size, dtype=self._dtype)

    @torch.inference_mode()
    def hidden_rows(self, texts: Sequence[Tensor], types: Sequence[Tensor] | None = None) -> Tensor:
        """Return the last layer's rows [tokens, hidden] of texts, each its token ids [length] int64, end to end.

        `types` gives for each token its part of a pair; a single text has no second part. On a thread the next call may
        overwrite the rows.
        """
        step = TextStep.of(texts)
        typed = self._types[0] if types is None else self._types[torch.cat(list(types))]
        rows = functional.embedding(step.token_ids, self._words).float() + typed
        rows = self._norm(rows + self._positions[self._positions_of(texts, step)])
        return self._layers.run(rows.to(self._dtype), step)[0]

    def _positions_of(self, texts: Sequence[Tensor], step: TextStep) -> Tensor:
        padding_id = self.config.padding_id
        if padding_id is None:
            return step.paged.positions
        counts = [text != padding_id for text in texts]
        return torch.cat([own.cumsum(0) * own + padding_id for own in counts])


def _shapes(config: EncoderConfig) -> list[tuple[int, int]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    return [(3 * hidden, hidden), (hidden, hidden), (intermediate, hidden), (hidden, intermediate)] * config.num_layers
