"""`Embedder`: texts in, one vector per text out, in order; a model in this process, on the CPU.

For generation see `engine.llm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import InvalidConfigError, InvalidRequestError, ModelLoadError, UnsupportedModelError
from engine.models.paths import resolve_model_path
from engine.pooling.batches import batches
from engine.pooling.encoders.causal_encoder import CausalConfig
from engine.pooling.encoders.dtypes import read_dtype
from engine.pooling.encoders.encoder_config import AnyConfig, read_encoder_config
from engine.pooling.encoders.loading import load_encoder, longest_text
from engine.pooling.pooled import finish, pool, require_numbers
from engine.pooling.recipe import Pooling, Recipe, read_recipe
from engine.pooling.side_by_side import compute_each
from engine.pooling.text_tokens import TextTokens, TokenizedText

_MAX_BATCH_TOKENS = 1024
"""all-MiniLM-L6-v2 took 0.46 s for 6,687 tokens in bf16 on one core with AMX, with 256 0.59, with 4,096 0.57."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """The vectors of texts, in order."""

    vectors: npt.NDArray[np.float32]
    """[texts, dimensions]"""
    num_tokens: tuple[int, ...]
    """Computed tokens of each text, including special ones."""
    truncated: tuple[bool, ...]
    """Whether a text was longer than `max_tokens`, so that its vector ignores its end."""


class Embedder:
    """Load an encoder, or a decoder trained for embeddings, and embed texts. Not thread-safe."""

    def __init__(
        self,
        path: str | Path,
        *,
        pooling: str | None = None,
        dtype: str = "auto",
        max_batch_tokens: int = _MAX_BATCH_TOKENS,
    ) -> None:
        """Load a directory in the layout of sentence-transformers or transformers, or a hub id.

        `pooling` (cls, mean or last_token) is for a directory without modules.json, `dtype` one of `Dtype`. A batch has
        at most `max_batch_tokens`, unless one text alone has more. Raises ModelLoadError, UnsupportedModelError or
        InvalidConfigError.
        """
        if max_batch_tokens < 1:
            raise InvalidConfigError(f"max_batch_tokens is {max_batch_tokens}; it must be at least 1.")
        self._max_batch_tokens = max_batch_tokens
        self.dtype = read_dtype(dtype)
        folder = resolve_model_path(str(path))
        if not folder.is_dir():
            raise ModelLoadError(f"{folder} is a GGUF file; embeddings take a model directory with safetensors.")
        self._recipe = read_recipe(folder, pooling)
        self._config = config = read_encoder_config(self._recipe.encoder_path)
        _check_recipe(self._recipe, config)
        self.max_tokens = _max_tokens(self._recipe, config)
        self.dimensions = config.hidden_size
        self.pooling = self._recipe.pooling
        self.encoder_path = self._recipe.encoder_path
        self.vocab_size = config.vocab_size
        self._tokens = TextTokens(
            config.path,
            vocab_size=config.vocab_size,
            max_tokens=self.max_tokens,
            is_lower_cased=self._recipe.is_lower_cased,
        )
        self._encoder = load_encoder(config, self.dtype)

    def reload(self) -> None:
        """Read the weights again while nothing is computed, because those in memory may be corrupt."""
        del self._encoder  # first: there may be no room for both
        self._encoder = load_encoder(self._config, self.dtype)

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of the `tokenizers` library, without a length limit."""
        return self._tokens.whole

    def embed(self, texts: Iterable[str], *, dimensions: int | None = None) -> Embeddings:
        """Embed every text; `dimensions` keeps only the first numbers of each vector, normalized to length 1.

        A vector depends on its text alone, on most CPUs in every bit. Raises InvalidRequestError, and BrokenRowError if
        a vector has NaN or an infinity.
        """
        if dimensions is not None and not (type(dimensions) is int and 1 <= dimensions <= self.dimensions):
            raise InvalidRequestError(
                f"dimensions is {dimensions!r}; this model has vectors of 1 to {self.dimensions}."
            )
        tokenized = self.tokenize(texts)
        token_ids = [text.token_ids for text in tokenized]
        return Embeddings(
            vectors=require_numbers(self.embed_tokens(token_ids, dimensions=dimensions)),
            num_tokens=tuple(len(own) for own in token_ids),
            truncated=tuple(text.is_truncated for text in tokenized),
        )

    def tokenize(self, texts: Iterable[str]) -> list[TokenizedText]:
        """Tokenize every text; may run while `embed` does. Raises InvalidRequestError, with the index of the text."""
        return self._tokens(texts)

    def embed_tokens(
        self, token_ids: Sequence[torch.Tensor], *, dimensions: int | None = None
    ) -> npt.NDArray[np.float32]:
        """Embed texts like `embed`, each its ids [1 to `max_tokens`] int64 below `vocab_size`, special ones included.

        A vector with NaN or an infinity is returned as it is.
        """
        vectors = np.empty((len(token_ids), dimensions or self.dimensions), np.float32)
        lengths = [len(own) for own in token_ids]

        def compute(batch: list[int]) -> None:
            vectors[batch] = self._vectors([token_ids[index] for index in batch], dimensions)

        compute_each(compute, list(batches(lengths, max_tokens=self._max_batch_tokens)))
        return vectors

    def shorten(self, vector: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
        """Return the vector that `embed` computes with `dimensions`, from the whole vector, except for rounding."""
        if dimensions is None:
            return vector
        shortened: npt.NDArray[np.float32] = finish(
            torch.from_numpy(vector)[None], dimensions=dimensions, is_normalized=self._recipe.is_normalized
        ).numpy()[0]
        return shortened

    @torch.inference_mode()  # set per thread
    def _vectors(self, token_ids: list[torch.Tensor], dimensions: int | None) -> npt.NDArray[np.float32]:
        pooled = pool(self._encoder.hidden_rows(token_ids), [len(own) for own in token_ids], self._recipe.pooling)
        vectors: npt.NDArray[np.float32] = finish(
            pooled, dimensions=dimensions, is_normalized=self._recipe.is_normalized
        ).numpy()
        return vectors


def _check_recipe(recipe: Recipe, config: AnyConfig) -> None:
    """Raise ModelLoadError or UnsupportedModelError if the recipe does not fit the model's rows."""
    if recipe.hidden_size not in (None, config.hidden_size):
        raise ModelLoadError(
            f"{config.path}: the pooling takes rows of {recipe.hidden_size} numbers, the encoder has "
            f"{config.hidden_size}; one of the two is another model's."
        )
    if isinstance(config, CausalConfig) and recipe.pooling is not Pooling.LAST_TOKEN:
        raise UnsupportedModelError(
            f"{config.path} pools by {recipe.pooling}, and in a {config.model_type} only the last token has seen all "
            "the others; pool by lasttoken, or take a model whose tokens see both sides."
        )


def _max_tokens(recipe: Recipe, config: AnyConfig) -> int:
    """Return the longest text. Raises ModelLoadError if the directory allows one without positions."""
    if recipe.max_tokens is None:
        return longest_text(config)
    if recipe.max_tokens > config.max_tokens:
        raise ModelLoadError(
            f"{config.path}: max_seq_length is {recipe.max_tokens} in sentence_bert_config.json, and config.json has "
            f"positions for {config.max_tokens}; lower it there."
        )
    return recipe.max_tokens
