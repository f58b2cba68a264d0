"""Compute a decoder over whole texts, each token seeing those before it: ids in, one hidden row per token out.

The engine's own decoder on the CPU. A text is one piece, so no later step needs a layer's keys and values: all
layers write them to the same place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.models.config import ModelConfig, load_body_config
from engine.models.decoder import Decoder
from engine.models.step_model import StepTensors, new_cache
from engine.pooling.encoders.dtypes import Dtype
from engine.pooling.encoders.text_step import BLOCK_SIZE, TextStep


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConfig:
    """A decoder of the Llama family used for its hidden rows."""

    body: ModelConfig
    max_tokens: int

    @property
    def path(self) -> Path:
        """Return its directory."""
        return self.body.path

    @property
    def model_type(self) -> str:
        """Return its family."""
        return self.body.model_type

    @property
    def vocab_size(self) -> int:
        """Return the size of its vocabulary."""
        return self.body.vocab_size

    @property
    def hidden_size(self) -> int:
        """Return the width of its rows."""
        return self.body.hidden_size


def read_causal_config(path: Path, raw: dict[str, Any]) -> CausalConfig:
    """Read a decoder's configuration, whatever its head. Raises ModelLoadError, or UnsupportedModelError by name."""
    reason = next(_reasons_against(raw), None)
    if reason is not None:
        raise UnsupportedModelError(f"{path}: {reason}")
    body = load_body_config(str(path))
    assert body.max_model_len is not None, "the families of our own decoder have positions"
    return CausalConfig(body=body, max_tokens=body.max_model_len)


def _reasons_against(raw: dict[str, Any]) -> Iterator[str]:
    if raw.get("auto_map"):
        yield "config.json has code of its own (auto_map), which is never run; take a model without."
    if raw.get("is_causal") is False or raw.get("use_bidirectional_attention"):
        yield f"its {raw['model_type']} sees all tokens of a text at once; here a token sees only those before it."


class CausalEncoder:
    """A decoder's weights without its head, and its forward pass. Thread-safe."""

    def __init__(self, config: CausalConfig, dtype: Dtype) -> None:
        """Read the weights.

        Raises ModelLoadError if they do not belong to the configuration, UnsupportedModelError for int8.
        """
        if dtype is Dtype.INT8:
            raise UnsupportedModelError(f"{config.path} is a decoder, which int8 is not for; use bfloat16 or float32.")
        self._dtype = dtype.of_rows
        with torch.inference_mode():
            self._decoder = Decoder(
                config.body,
                dtype=self._dtype,
                device=torch.device("cpu"),
                max_positions=config.max_tokens,
                has_head=False,
                is_shared=True,
                has_steps=False,
            )

    @torch.inference_mode()
    def hidden_rows(self, texts: Sequence[Tensor], types: Sequence[Tensor] | None = None) -> Tensor:
        """Return the last norm's rows [tokens, hidden] of texts, each its token ids [length] int64, end to end.

        A decoder has no `types`.
        """
        del types
        step = TextStep.of(texts)
        one_layer = new_cache(
            self._decoder.kv_shapes[:1],
            num_blocks=step.num_blocks,
            block_size=BLOCK_SIZE,
            dtype=self._dtype,
            device=torch.device("cpu"),
        )
        tensors = StepTensors(token_ids=step.token_ids, paged=step.paged)
        return self._decoder.normed(*self._decoder.forward(tensors, one_layer * len(self._decoder.kv_shapes)))
