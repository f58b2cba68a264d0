"""A reranker's head, which turns a pair's hidden rows into one number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.models.weights import Checkpoint
from engine.pooling.encoders.causal_encoder import CausalConfig
from engine.pooling.encoders.encoder_config import AnyConfig, EncoderConfig
from engine.pooling.encoders.encoder_weights import EncoderWeights
from engine.pooling.encoders.layers import ACTIVATIONS
from engine.pooling.encoders.modern_config import ModernConfig
from engine.pooling.json_files import read_object
from engine.pooling.modules import LOGIT_SCORE, TRANSFORMER, read_modules
from engine.pooling.pooled import pool
from engine.pooling.recipe import Pooling
from kernels.activations import activate
from kernels.packed_linear import PackedLinear

_NAMES = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
}
"""By model_type: the product before the tanh, and the one after it."""

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreHead:
    """Turns the rows of packed pairs into their scores."""

    pooling: Pooling
    layers: Sequence[Layer]

    def __call__(self, rows: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return the logit [pairs] of each pair, whose rows [tokens, hidden] lie end to end."""
        pooled = pool(rows, lengths, self.pooling)
        for layer in self.layers:
            pooled = layer(pooled)
        return pooled.squeeze(-1)


def read_score_head(config: AnyConfig) -> ScoreHead:
    """Read the weights: of a …ForSequenceClassification with one label, or LogitScore's of a language model.

    Raises ModelLoadError, and UnsupportedModelError for a head that gives no score.
    """
    modules = read_modules(config.path)
    if modules is not None and list(modules) not in ([TRANSFORMER], [TRANSFORMER, LOGIT_SCORE]):
        raise UnsupportedModelError(
            f"{config.path / 'modules.json'} has the modules {', '.join(modules) or 'none'}; scores are given by "
            "Transformer and, in a language model, LogitScore."
        )
    is_language_model = modules is not None and LOGIT_SCORE in modules
    reason = next(_reasons_against(read_object(config.path / "config.json"), is_language_model=is_language_model), None)
    if reason is not None:
        raise UnsupportedModelError(f"{config.path}: {reason}")
    quantization = config.body.quantization if isinstance(config, CausalConfig) else None
    with Checkpoint(config.path, dtype=torch.float32, quantization=quantization) as checkpoint:
        if isinstance(config, EncoderConfig):
            return _encoder_head(config, checkpoint)
        if isinstance(config, ModernConfig):
            return _modern_head(config, checkpoint)
        if modules is not None and is_language_model:
            return _language_head(config, checkpoint, config.path / modules[LOGIT_SCORE] / "config.json")
        head = EncoderWeights(checkpoint).linear("score", 1, config.hidden_size, has_bias=False)
        return ScoreHead(pooling=Pooling.LAST_TOKEN, layers=[head])


def _reasons_against(raw: dict[str, Any], *, is_language_model: bool) -> Iterator[str]:
    architecture = next(iter(raw.get("architectures") or ()), None)
    suffix = "ForCausalLM" if is_language_model else "ForSequenceClassification"
    if not str(architecture).endswith(suffix):
        yield f"its architecture is {architecture}; scores are given by a …{suffix}{' here' * is_language_model}."
    num_labels = len(raw.get("id2label") or (0, 1))  # transformers' default is two
    if num_labels != 1 and not is_language_model:
        yield f"it has {num_labels} labels (id2label); a reranker has one, its score."


def _encoder_head(config: EncoderConfig, checkpoint: Checkpoint) -> ScoreHead:
    weights, hidden = EncoderWeights(checkpoint), config.hidden_size
    dense, output = _NAMES[config.model_type]
    layers: list[Layer] = [weights.linear(dense, hidden, hidden), torch.tanh, weights.linear(output, 1, hidden)]
    return ScoreHead(pooling=Pooling.CLS, layers=layers)


def _modern_head(config: ModernConfig, checkpoint: Checkpoint) -> ScoreHead:
    if config.head_activation not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{config.path}: classifier_activation is {config.head_activation!r}; the activations here are "
            f"{', '.join(ACTIVATIONS)}."
        )
    weights, hidden = EncoderWeights(checkpoint), config.hidden_size
    layers: list[Layer] = [
        weights.linear("head.dense", hidden, hidden, has_bias=config.has_head_bias),
        partial(activate, activation=ACTIVATIONS[config.head_activation]),
        weights.norm("head.norm", hidden, eps=config.norm_eps, has_bias=config.has_norm_bias),
        weights.linear("classifier", 1, hidden),
    ]
    return ScoreHead(pooling=Pooling(config.head_pooling), layers=layers)


def _language_head(config: CausalConfig, checkpoint: Checkpoint, file: Path) -> ScoreHead:
    """Return how much more likely one token is than another, as logits: the difference of two rows of the head."""
    settings = read_object(file)
    matrix = _matrix(config, checkpoint)
    yes = _token(settings, "true_token_id", config, file)
    row = matrix[yes].to(torch.float32, copy=True)  # a copy, so that the file need not stay mapped
    if settings.get("false_token_id") is not None:
        row = row - matrix[_token(settings, "false_token_id", config, file)].float()
    return ScoreHead(pooling=Pooling.LAST_TOKEN, layers=[PackedLinear(row[None], None)])


def _matrix(config: CausalConfig, checkpoint: Checkpoint) -> Tensor:
    embedding = ("model.embed_tokens.weight", "embed_tokens.weight")
    names = embedding if config.body.has_tied_embeddings else ("lm_head.weight",)
    name = next((name for name in names if name in checkpoint), names[0])
    return checkpoint.whole(name)


def _token(settings: dict[str, Any], name: str, config: CausalConfig, file: Path) -> int:
    token_id = settings.get(name)
    if type(token_id) is not int or not 0 <= token_id < config.vocab_size:
        raise ModelLoadError(f"{file}: {name} is {token_id!r}; it must be a token from 0 to {config.vocab_size - 1}.")
    return token_id
