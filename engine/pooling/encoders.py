"""Load what computes a folder's hidden rows, whichever architecture it has. Knows neither text nor pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.pooling.causal_encoder import CausalConfig, CausalEncoder
from engine.pooling.encoder import Encoder
from engine.pooling.encoder_config import AnyConfig
from engine.pooling.json_files import read_object
from engine.pooling.modern_config import ModernConfig
from engine.pooling.modern_encoder import ModernEncoder


class AnyEncoder(Protocol):
    """The weights of an encoder or a decoder, and its forward pass. Safe to use from several threads."""

    def hidden_rows(self, texts: Sequence[Tensor], types: Sequence[Tensor] | None = None) -> Tensor:
        """Return the last rows [tokens, hidden] of texts, each its token ids [length] int64, end to end.

        `types` says of each token which part of a pair it belongs to; most architectures do not tell them apart.
        """
        ...


def load_encoder(config: AnyConfig) -> AnyEncoder:
    """Read the weights. Raises ModelLoadError where they do not belong to the configuration."""
    match config:
        case CausalConfig():
            return CausalEncoder(config)
        case ModernConfig():
            return ModernEncoder(config)
        case _:
            return Encoder(config)


def longest_text(config: AnyConfig) -> int:
    """Return what the tokenizer says, and never more than there are positions."""
    said = read_object(config.path / "tokenizer_config.json").get("model_max_length")
    return min(said, config.max_tokens) if isinstance(said, int) else config.max_tokens
