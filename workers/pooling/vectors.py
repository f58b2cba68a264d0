"""Lines of `/v1/embeddings`: tokenises texts and returns their vectors in OpenAI's format."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.errors import InvalidRequestError
from engine.pooling.embedder import Embedder
from engine.pooling.identity import model_sha256, tokenizer_sha256
from engine.pooling.text_tokens import TokenizedText
from jobs.lines.body_checks import BodyError
from jobs.lines.embedding_bodies import EmbeddingRequest, Encoding
from jobs.lines.endpoints import LineKind, Request
from jobs.lines.responses import embeddings_body
from jobs.served_models import ModelEmbedding
from workers.pooling.lines import Numbers, PoolLine
from workers.prompt_lengths import Unwanted


class VectorModel:
    """A `PoolModel` that embeds."""

    kind = LineKind.POOL

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.max_tokens = embedder.max_tokens

    def made_by(self, folder: Path) -> ModelEmbedding:
        """Return how its vectors are made, from the files in `folder`, which are read."""
        return ModelEmbedding(
            model_sha256=model_sha256(folder),
            tokenizer_sha256=tokenizer_sha256(self._embedder.encoder_path),
            pooling=self._embedder.pooling,
            dimensions=self._embedder.dimensions,
            max_tokens=self.max_tokens,
            dtype=self._embedder.dtype,
        )

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer that it counts tokens by: see `Embedder.tokenizer`."""
        return self._embedder.tokenizer

    def tokenize(self, request: Request, *, is_wanted: Callable[[], bool]) -> Iterator[TokenizedText]:
        assert isinstance(request, EmbeddingRequest), "served_models.note_kind keeps others away"
        most = self._embedder.dimensions
        if request.dimensions is not None and request.dimensions > most:
            raise BodyError("dimensions", f"dimensions is {request.dimensions}; this model has vectors of 1 to {most}")
        for index, one in enumerate(request.inputs):
            if not is_wanted():
                raise Unwanted
            name = f"input[{index}]"
            if isinstance(one, str):
                yield self._of_text(one, name, truncate=request.truncate)
            else:
                yield self._of_ids(one, name)

    def compute(self, inputs: Sequence[TokenizedText]) -> Numbers:
        return self._embedder.embed_tokens([one.token_ids for one in inputs])

    def reload(self) -> None:
        self._embedder.reload()

    def body(self, line: PoolLine, numbers: Numbers, *, response_id: str, name: str) -> dict[str, Any]:
        del response_id  # OpenAI's answer has none
        request = line.request
        assert isinstance(request, EmbeddingRequest), "tokenize accepted it"
        shortened = [self._embedder.shorten(vector, request.dimensions) for vector in numbers]
        vectors = [_written(vector, request.encoding) for vector in shortened]
        return embeddings_body(vectors, model=name, num_tokens=line.most_tokens)

    def _of_text(self, text: str, name: str, *, truncate: bool) -> TokenizedText:
        try:
            (tokenized,) = self._embedder.tokenize([text])
        except InvalidRequestError as error:
            raise BodyError("input", f"{name} cannot be tokenised: {error}") from None
        if tokenized.is_truncated and not truncate:
            raise self._too_long(f"{name} has more than {self.max_tokens:,} tokens", instead=", or send truncate")
        return tokenized

    def _of_ids(self, token_ids: Sequence[int], name: str) -> TokenizedText:
        if len(token_ids) > self.max_tokens:
            raise self._too_long(f"{name} has {len(token_ids):,} tokens")
        if max(token_ids) >= self._embedder.vocab_size:
            most = self._embedder.vocab_size - 1
            raise BodyError("input", f"{name} has the token id {max(token_ids)}; this model has 0 to {most}")
        return TokenizedText(token_ids=torch.tensor(token_ids), is_truncated=False)

    def _too_long(self, problem: str, *, instead: str = "") -> BodyError:
        message = f"{problem}; this model reads {self.max_tokens:,} at most. Cut it into several inputs{instead}"
        return BodyError("input", message, code="context_length_exceeded")


def _written(vector: Numbers, encoding: Encoding) -> list[float] | str:
    if encoding is Encoding.BASE64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
