"""The head of a cross-encoder: a text pair's first row becomes one number. Knows neither texts nor tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.models.weights import Checkpoint
from engine.pooling.encoder_config import EncoderConfig
from engine.pooling.json_files import read_object
from engine.pooling.layers import Linear

_NAMES = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
}
"""By model_type: the product before the tanh, and the one after it."""


class ScoreHead:
    """The weights of a `…ForSequenceClassification` with one label."""

    def __init__(self, config: EncoderConfig) -> None:
        """Read the weights. Raises ModelLoadError, and UnsupportedModelError for a head that gives no score."""
        reason = next(_reasons_against(read_object(config.path / "config.json")), None)
        if reason is not None:
            raise UnsupportedModelError(f"{config.path}: {reason}")
        hidden, (dense, output) = config.hidden_size, _NAMES[config.model_type]
        with Checkpoint(config.path, dtype=torch.float32) as checkpoint:
            self._dense = _linear(checkpoint, dense, hidden, hidden)
            self._output = _linear(checkpoint, output, 1, hidden)

    def __call__(self, first_rows: Tensor) -> Tensor:
        """Return the logit [pairs] of each pair's first row [pairs, hidden]."""
        return self._output(torch.tanh(self._dense(first_rows))).squeeze(-1)


def _reasons_against(raw: dict[str, Any]) -> Iterator[str]:
    architecture = next(iter(raw.get("architectures") or ()), None)
    if not str(architecture).endswith("ForSequenceClassification"):
        yield f"its architecture is {architecture}; scores are given by a …ForSequenceClassification."
    num_labels = len(raw.get("id2label") or (0, 1))  # two are what transformers takes where none are named
    if num_labels != 1:
        yield f"it has {num_labels} labels (id2label); a reranker has one, its score."


def _linear(checkpoint: Checkpoint, name: str, size: int, size_in: int) -> Linear:
    return Linear(
        weight=checkpoint.read(f"{name}.weight", (size, size_in)), bias=checkpoint.read(f"{name}.bias", (size,))
    )
