"""Answers lines with the vectors of one encoder, which all chunks of a worker share: one group at a time.

Knows no lease and no SQL.
"""

from __future__ import annotations

import base64
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.pooling.embedder import Embedder
from jobs.chunks.recording import LineResult
from jobs.lines.embedding_bodies import Encoding
from jobs.lines.output_lines import output_line
from jobs.lines.responses import embeddings_body
from workers.chunks.line_results import FailureMaker
from workers.embedding.lines import EmbeddingLine
from workers.prompt_lengths import Unwanted

log = logging.getLogger(__name__)

_PIECE_TOKENS = 4096
"""Computed between two looks whether the lines are still wanted."""
_LOOK_SECONDS = 0.2

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The results of a group of lines."""

    results: Sequence[LineResult]
    microseconds: int
    """That the encoder was at work for them."""


class VectorAnswers:
    """Safe to use from the threads of several chunks."""

    def __init__(self, embedder: Embedder, *, model: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._embedder = embedder
        self._model = model
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self.num_running = 0
        """Lines that are being computed."""

    def answer(self, lines: Sequence[EmbeddingLine], *, batch_id: str, is_wanted: Callable[[], bool]) -> Answered:
        """Return the results of lines in their order. A line that cannot be computed fails alone. Raises Unwanted."""
        self._wait_for_turn(is_wanted)
        try:
            self.num_running = len(lines)
            began = self._monotonic()
            results = self._answer(lines, batch_id, is_wanted)
            return Answered(results=results, microseconds=round((self._monotonic() - began) * 1e6))
        finally:
            self.num_running = 0
            self._turn.release()

    def _wait_for_turn(self, is_wanted: Callable[[], bool]) -> None:
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            if not is_wanted():
                raise Unwanted

    def _answer(self, lines: Sequence[EmbeddingLine], batch_id: str, is_wanted: Callable[[], bool]) -> list[LineResult]:
        try:
            return [
                self._result(line, vectors, batch_id)
                for line, vectors in zip(lines, self._vectors(lines, is_wanted), strict=True)
            ]
        except Unwanted:
            raise
        except Exception as error:
            if len(lines) > 1:
                return [result for line in lines for result in self._answer([line], batch_id, is_wanted)]
            line = lines[0]
            log.exception("line failed unexpectedly batch_id=%s line_no=%s", batch_id, line.line_no)
            return [FailureMaker(batch_id).fault(line.line_no, line.custom_id, error=error)]

    def _vectors(self, lines: Sequence[EmbeddingLine], is_wanted: Callable[[], bool]) -> Iterator[Sequence[Vectors]]:
        """Yield the vectors of each line, whole ones: those of all lines are computed by pieces."""
        inputs = [own for line in lines for own in line.token_ids]
        found: list[Vectors] = []
        while len(found) < len(inputs):
            if not is_wanted():
                raise Unwanted
            end, num_tokens = len(found), 0
            while end < len(inputs) and (num_tokens == 0 or num_tokens + len(inputs[end]) <= _PIECE_TOKENS):
                num_tokens += len(inputs[end])
                end += 1
            found.extend(self._embedder.embed_tokens(inputs[len(found) : end]))
        vectors = iter(found)
        for line in lines:
            yield list(itertools.islice(vectors, len(line.token_ids)))

    def _result(self, line: EmbeddingLine, vectors: Sequence[Vectors], batch_id: str) -> LineResult:
        kept = [self._embedder.shorten(vector, line.dimensions) for vector in vectors]
        body = embeddings_body(
            [_written(vector, line.encoding) for vector in kept], model=self._model, num_tokens=line.most_tokens
        )
        content = output_line(batch_id, line.line_no, line.custom_id, status_code=200, body=body)
        return LineResult(line_no=line.line_no, status_code=200, line=content, input_tokens=line.most_tokens)


def _written(vector: Vectors, encoding: Encoding) -> list[float] | str:
    if encoding is Encoding.BASE64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
