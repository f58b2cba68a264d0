"""Answers lines by one model that pools, which all chunks of a worker share: one group at a time.

Knows no lease and no SQL.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.chunks.recording import LineResult
from jobs.lines.output_lines import output_line, response_id
from workers.chunks.line_results import FailureMaker
from workers.pooling.lines import Numbers, PoolLine, PoolModel
from workers.prompt_lengths import Unwanted

log = logging.getLogger(__name__)

_PIECE_TOKENS = 4096
"""Computed between two looks whether the lines are still wanted."""
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The results of a group of lines."""

    results: Sequence[LineResult]
    microseconds: int
    """That the model was at work for them."""


class PoolAnswers:
    """Safe to use from the threads of several chunks."""

    def __init__(self, model: PoolModel[Any], *, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._name = name
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self.num_running = 0
        """Lines that are being computed."""

    def answer(self, lines: Sequence[PoolLine], *, batch_id: str, is_wanted: Callable[[], bool]) -> Answered:
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

    def _answer(self, lines: Sequence[PoolLine], batch_id: str, is_wanted: Callable[[], bool]) -> list[LineResult]:
        try:
            return [
                self._result(line, found, batch_id)
                for line, found in zip(lines, self._found(lines, is_wanted), strict=True)
            ]
        except Unwanted:
            raise
        except Exception as error:
            if len(lines) > 1:
                return [result for line in lines for result in self._answer([line], batch_id, is_wanted)]
            line = lines[0]
            log.exception("line failed unexpectedly batch_id=%s line_no=%s", batch_id, line.line_no)
            return [FailureMaker(batch_id).fault(line.line_no, line.custom_id, error=error)]

    def _found(self, lines: Sequence[PoolLine], is_wanted: Callable[[], bool]) -> Iterator[Numbers]:
        """Yield what was asked of the inputs of each line: those of all lines are computed by pieces."""
        inputs = [one for line in lines for one in line.inputs]
        found: list[Any] = []
        while len(found) < len(inputs):
            if not is_wanted():
                raise Unwanted
            end, num_tokens = len(found), 0
            while end < len(inputs) and (num_tokens == 0 or num_tokens + len(inputs[end].token_ids) <= _PIECE_TOKENS):
                num_tokens += len(inputs[end].token_ids)
                end += 1
            found.extend(self._model.compute(inputs[len(found) : end]))
        numbers = iter(found)
        for line in lines:
            yield np.array(list(itertools.islice(numbers, len(line.inputs))))

    def _result(self, line: PoolLine, found: Numbers, batch_id: str) -> LineResult:
        answer_id = response_id(self._model.kind, batch_id, line.line_no)
        body = self._model.body(line, found, response_id=answer_id, name=self._name)
        content = output_line(batch_id, line.line_no, line.custom_id, status_code=200, body=body)
        return LineResult(line_no=line.line_no, status_code=200, line=content, input_tokens=line.most_tokens)
