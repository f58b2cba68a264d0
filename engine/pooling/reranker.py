"""`Reranker`: a query and documents in, one score per document out, in order; a model in this process, on the CPU.

The scores are not sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import InvalidConfigError, ModelLoadError, UnsupportedModelError
from engine.models.paths import resolve_model_path
from engine.pooling.batches import batches
from engine.pooling.encoders.causal_encoder import CausalConfig
from engine.pooling.encoders.dtypes import read_dtype
from engine.pooling.encoders.encoder_config import AnyConfig, read_encoder_config
from engine.pooling.encoders.loading import load_encoder, longest_text
from engine.pooling.modules import LOGIT_SCORE, read_modules
from engine.pooling.pair_prompts import PairPrompts, read_pair_template
from engine.pooling.pair_tokens import PairTokens, TokenizedPair
from engine.pooling.pooled import require_numbers
from engine.pooling.recipe import refuse_default_prompt
from engine.pooling.score_head import read_score_head
from engine.pooling.side_by_side import compute_each

_MAX_BATCH_TOKENS = 1024
"""The best value measured for `Embedder`; a cross-encoder's layers are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How well documents answer a query, in order."""

    scores: npt.NDArray[np.float32]
    """[documents]: the head's logit, any number; its sigmoid is in 0..1 and has the same order."""
    num_tokens: tuple[int, ...]
    """Tokens computed with each document: the query's, its own and special ones."""
    truncated: tuple[bool, ...]
    """Whether a document did not fit beside the query, so that its score ignores its end."""


class Reranker:
    """Load a cross-encoder, or a language model trained for reranking, and score documents. Not thread-safe."""

    def __init__(self, path: str | Path, *, dtype: str = "auto", max_batch_tokens: int = _MAX_BATCH_TOKENS) -> None:
        """Load a directory in transformers' layout, or a hub id.

        `dtype` is one of `Dtype`. A batch has at most `max_batch_tokens`, unless one pair alone has more. Raises
        ModelLoadError, UnsupportedModelError or InvalidConfigError.
        """
        if max_batch_tokens < 1:
            raise InvalidConfigError(f"max_batch_tokens is {max_batch_tokens}; it must be at least 1.")
        self._max_batch_tokens = max_batch_tokens
        self.dtype = read_dtype(dtype)
        folder = resolve_model_path(str(path))
        if not folder.is_dir():
            raise ModelLoadError(f"{folder} is a GGUF file; reranking takes a model directory with safetensors.")
        self._config = config = read_encoder_config(folder)
        self._head = read_score_head(config)
        self.max_tokens = longest_text(config)
        self._tokens = _tokens_of(config, max_tokens=self.max_tokens)
        self._encoder = load_encoder(config, self.dtype)

    def reload(self) -> None:
        """Read the weights again while nothing is computed, because those in memory may be corrupt."""
        del self._encoder  # first: there may be no room for both
        self._head = read_score_head(self._config)
        self._encoder = load_encoder(self._config, self.dtype)

    def score(self, query: str, documents: Iterable[str]) -> Scores:
        """Score every document for the query; a score depends on its pair alone, on most CPUs in every bit.

        Raises InvalidRequestError, and BrokenRowError if a score is NaN or infinite.
        """
        pairs = self.tokenize(query, documents)
        return Scores(
            scores=require_numbers(self.score_tokens(pairs)),
            num_tokens=tuple(len(pair.token_ids) for pair in pairs),
            truncated=tuple(pair.is_truncated for pair in pairs),
        )

    def tokenize(self, query: str, documents: Iterable[str]) -> list[TokenizedPair]:
        """Tokenize the query with every document. Raises InvalidRequestError for an invalid text."""
        return self._tokens(query, documents)

    def score_tokens(self, pairs: Sequence[TokenizedPair]) -> npt.NDArray[np.float32]:
        """Return the scores [pairs] like `score`, for any queries; NaN and infinite ones are returned as they are."""
        scores = np.empty(len(pairs), np.float32)
        lengths = [len(pair.token_ids) for pair in pairs]

        def compute(batch: list[int]) -> None:
            scores[batch] = self._scores([pairs[index] for index in batch])

        compute_each(compute, list(batches(lengths, max_tokens=self._max_batch_tokens)))
        return scores

    @torch.inference_mode()  # set per thread
    def _scores(self, batch: list[TokenizedPair]) -> npt.NDArray[np.float32]:
        token_ids = [pair.token_ids for pair in batch]
        rows = self._encoder.hidden_rows(token_ids, [pair.types for pair in batch])
        scores: npt.NDArray[np.float32] = self._head(rows, [len(own) for own in token_ids]).numpy()
        return scores


def _tokens_of(config: AnyConfig, *, max_tokens: int) -> PairTokens | PairPrompts:
    """Return a tokenizer for pairs in the model's training format. Raises ModelLoadError or UnsupportedModelError."""
    template = read_pair_template(config.path) if isinstance(config, CausalConfig) else None
    if template is not None:
        return PairPrompts(config.path, template, vocab_size=config.vocab_size, max_tokens=max_tokens)
    if LOGIT_SCORE in (read_modules(config.path) or {}):
        raise UnsupportedModelError(
            f"{config.path}: its chat template does not contain messages of the roles query and document unchanged; "
            "put the chat_template.jinja of the reranker there."
        )
    refuse_default_prompt(config.path)
    return PairTokens(config.path, vocab_size=config.vocab_size, max_tokens=max_tokens)
