"""The lines of a chunk as an encoder takes them: tokenised, measured, and cut into groups. Computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import InvalidRequestError
from engine.pooling.embedder import Embedder
from jobs.lines.body_checks import BodyError
from jobs.lines.embedding_bodies import EmbeddingRequest, Encoding
from workers.prompt_lengths import Unwanted

GROUP_TOKENS = 16_384
"""Of lines that are computed between two writes, unless one line alone has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLine:
    """A line ready for the encoder."""

    line_no: int
    custom_id: str
    token_ids: tuple[Tensor, ...]
    """Of each input, special ones too."""
    dimensions: int | None
    encoding: Encoding

    @property
    def most_tokens(self) -> int:
        """Return how many the line uses, which is known before."""
        return sum(map(len, self.token_ids))


def prepare(
    request: EmbeddingRequest, embedder: Embedder, *, line_no: int, custom_id: str, is_wanted: Callable[[], bool]
) -> EmbeddingLine:
    """Return what is to be computed. Raises BodyError for what this model does not take, and Unwanted."""
    most = embedder.dimensions
    if request.dimensions is not None and request.dimensions > most:
        raise BodyError("dimensions", f"dimensions is {request.dimensions}; this model has vectors of 1 to {most}")
    return EmbeddingLine(
        line_no=line_no,
        custom_id=custom_id,
        token_ids=tuple(_all_token_ids(request, embedder, is_wanted)),
        dimensions=request.dimensions,
        encoding=request.encoding,
    )


def _all_token_ids(request: EmbeddingRequest, embedder: Embedder, is_wanted: Callable[[], bool]) -> Iterator[Tensor]:
    for index, one in enumerate(request.inputs):
        if not is_wanted():
            raise Unwanted
        name = f"input[{index}]"
        yield _tokens_of_text(one, name, embedder) if isinstance(one, str) else _checked_ids(one, name, embedder)


def _tokens_of_text(text: str, name: str, embedder: Embedder) -> Tensor:
    try:
        (found,) = embedder.tokenize([text])
    except InvalidRequestError as error:
        raise BodyError("input", f"{name} cannot be tokenised: {error}") from None
    if found.is_truncated:
        raise _too_long(f"{name} has more than {embedder.max_tokens:,} tokens", embedder)
    return found.token_ids


def _checked_ids(token_ids: Sequence[int], name: str, embedder: Embedder) -> Tensor:
    if len(token_ids) > embedder.max_tokens:
        raise _too_long(f"{name} has {len(token_ids):,} tokens", embedder)
    if max(token_ids) >= embedder.vocab_size:
        message = f"{name} has the token id {max(token_ids)}; this model has 0 to {embedder.vocab_size - 1}"
        raise BodyError("input", message)
    return torch.tensor(token_ids)


def _too_long(said: str, embedder: Embedder) -> BodyError:
    message = f"{said}; this model reads {embedder.max_tokens:,} at most. Cut it into several inputs"
    return BodyError("input", message, code="context_length_exceeded")


def next_group(lines: Sequence[EmbeddingLine], *, max_lines: int) -> Sequence[EmbeddingLine]:
    """Return the first lines, as many as are computed together; at least one."""
    num_tokens = 0
    for index, line in enumerate(lines[:max_lines]):
        num_tokens += line.most_tokens
        if index and num_tokens > GROUP_TOKENS:
            return lines[:index]
    return lines[:max_lines]
