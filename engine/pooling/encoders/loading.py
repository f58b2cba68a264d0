"""Load the encoder of a directory, of any supported architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.pooling.encoders.causal_encoder import CausalConfig, CausalEncoder
from engine.pooling.encoders.dtypes import Dtype
from engine.pooling.encoders.encoder import Encoder
from engine.pooling.encoders.encoder_config import AnyConfig
from engine.pooling.encoders.modern_config import ModernConfig
from engine.pooling.encoders.modern_encoder import ModernEncoder
from engine.pooling.json_files import read_object


class AnyEncoder(Protocol):
    """The weights of an encoder or a decoder, and its forward pass. Thread-safe."""

    def hidden_rows(self, texts: Sequence[Tensor], types: Sequence[Tensor] | None = None) -> Tensor:
        """Return the last rows [tokens, hidden] of texts, each its token ids [length] int64, end to end.

        `types` gives for each token its part of a pair; most architectures do not distinguish them. On a thread the
        next call may overwrite the rows.
        """
        ...


def load_encoder(config: AnyConfig, dtype: Dtype) -> AnyEncoder:
    """Read the weights. Raises ModelLoadError if they do not belong to the configuration.

    Raises UnsupportedModelError if they cannot be had in this dtype.
    """
    match config:
        case CausalConfig():
            return CausalEncoder(config, dtype)
        case ModernConfig():
            return ModernEncoder(config, dtype)
        case _:
            return Encoder(config, dtype)


def longest_text(config: AnyConfig) -> int:
    """Return the tokenizer's limit, and never more than there are positions."""
    limit = read_object(config.path / "tokenizer_config.json").get("model_max_length")
    return min(limit, config.max_tokens) if isinstance(limit, int) else config.max_tokens
