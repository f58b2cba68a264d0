"""`Reranker`: a query and documents in, one score a document out, in order; a cross-encoder, on the CPU.

Knows neither requests nor HTTP, and sorts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import InvalidConfigError, InvalidRequestError, ModelLoadError, UnsupportedModelError
from engine.models.paths import resolve_model_path
from engine.pooling.batches import batches
from engine.pooling.encoder import Encoder
from engine.pooling.encoder_config import EncoderConfig, read_encoder_config
from engine.pooling.json_files import read_object
from engine.pooling.pair_tokens import PairTokens, TokenizedPair
from engine.pooling.pooled import pool
from engine.pooling.recipe import Pooling
from engine.pooling.score_head import ScoreHead
from engine.pooling.side_by_side import compute_each

_MAX_BATCH_TOKENS = 1024
"""What `Embedder` was measured to do best with; a cross-encoder's layers are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How well documents answer a query, in their order."""

    scores: npt.NDArray[np.float32]
    """[documents]: the head's logit, any number; the sigmoid of it lies in 0..1 and orders alike."""
    num_tokens: tuple[int, ...]
    """How many tokens were computed with each document: the query's, its own and special ones."""
    truncated: tuple[bool, ...]
    """Whether a document had no room beside the query, so that its score knows nothing of its end."""


class Reranker:
    """Load a cross-encoder and score documents. Not thread-safe."""

    def __init__(self, path: str | Path, *, max_batch_tokens: int = _MAX_BATCH_TOKENS) -> None:
        """Load a folder as transformers writes it, or a hub id.

        A batch has at most `max_batch_tokens`, unless one pair alone has more. Raises ModelLoadError,
        UnsupportedModelError or InvalidConfigError.
        """
        if max_batch_tokens < 1:
            raise InvalidConfigError(f"max_batch_tokens is {max_batch_tokens}; it must be at least 1.")
        self._max_batch_tokens = max_batch_tokens
        folder = resolve_model_path(str(path))
        if not folder.is_dir():
            raise ModelLoadError(f"{folder} is a GGUF file; reranking takes a model directory with safetensors.")
        config = read_encoder_config(folder)
        if not isinstance(config, EncoderConfig):
            raise UnsupportedModelError(
                f"{folder}: model_type is {config.model_type!r}; scores are computed by bert, roberta and xlm-roberta."
            )
        self._head = ScoreHead(config)
        self.max_tokens = _max_tokens(config)
        self._tokens = PairTokens(folder, vocab_size=config.vocab_size, max_tokens=self.max_tokens)
        self._encoder = Encoder(config)

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """Score every document for the query; a score depends on its pair alone, but for the rounding of fp32.

        Raises InvalidRequestError.
        """
        if isinstance(documents, str):
            raise InvalidRequestError("documents is one str; give a list of them.")
        found = self._tokens(query, documents)
        scores = np.empty(len(found), np.float32)
        lengths = tuple(len(pair.token_ids) for pair in found)

        def compute(batch: list[int]) -> None:
            scores[batch] = self._scores([found[index] for index in batch])

        compute_each(compute, list(batches(lengths, max_tokens=self._max_batch_tokens)))
        return Scores(scores=scores, num_tokens=lengths, truncated=tuple(pair.is_truncated for pair in found))

    @torch.inference_mode()  # a matter of each thread
    def _scores(self, batch: list[TokenizedPair]) -> npt.NDArray[np.float32]:
        token_ids = [pair.token_ids for pair in batch]
        rows = self._encoder.hidden_rows(token_ids, [pair.types for pair in batch])
        first_rows = pool(rows, [len(own) for own in token_ids], Pooling.CLS)
        scores: npt.NDArray[np.float32] = self._head(first_rows).numpy()
        return scores


def _max_tokens(config: EncoderConfig) -> int:
    """Return the longest pair: what the tokenizer says, and never more than there are positions."""
    said = read_object(config.path / "tokenizer_config.json").get("model_max_length")
    return min(said, config.max_tokens) if isinstance(said, int) else config.max_tokens
