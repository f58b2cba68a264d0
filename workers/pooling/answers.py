"""Answers lines by one model that pools, which all chunks of a worker share: one group at a time.

Knows no lease and no SQL.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.pooling.pooled import are_numbers
from jobs.chunks.recording import LineResult
from jobs.lines.output_lines import output_line, response_id
from workers.chunks.line_results import FailureMaker
from workers.chunks.running import RunningCount
from workers.engine_host.broken import MAX_IN_A_ROW
from workers.pooling.lines import Numbers, PoolLine, PoolModel
from workers.prompt_lengths import Unwanted

log = logging.getLogger(__name__)

_PIECE_TOKENS = 4096
"""Computed between two looks whether the lines are still wanted."""
_LOOK_SECONDS = 0.2

_BROKEN_TWICE = (
    "The model's arithmetic broke on this line, twice: what was computed is NaN or infinite. It is not billed. Report "
    "it to who runs this service."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The results of a group of lines."""

    results: Sequence[LineResult]
    microseconds: int
    """That the model was at work for them."""
    broken: Sequence[int] = ()
    """Numbers of lines whose rows were broken, and which are for another worker: this one is out."""


class PoolAnswers:
    """Safe to use from the threads of several chunks."""

    def __init__(
        self,
        model: PoolModel[Any],
        *,
        name: str,
        on_broken: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_broken(reason)` is called when the model gives one line after the other no numbers."""
        self._model = model
        self._name = name
        self._on_broken = on_broken
        self._num_broken_in_a_row = 0
        self._monotonic = monotonic
        self._turn = threading.Lock()
        self.running = RunningCount()

    def answer(
        self,
        lines: Sequence[PoolLine],
        *,
        batch_id: str,
        is_wanted: Callable[[], bool],
        broken_before: Collection[int] = (),
    ) -> Answered:
        """Return the results of lines. A line that cannot be computed fails alone. Raises Unwanted.

        A line whose rows are broken is computed once more after the model was read anew, but for those by whose number
        that is known of another worker: their next such end is their last, too.
        """
        self._wait_for_turn(is_wanted)
        try:
            began = self._monotonic()
            with self.running.including(batch_id, len(lines)):
                results, broken = self._answer_anew(lines, batch_id, is_wanted, broken_before)
            microseconds = round((self._monotonic() - began) * 1e6)
            return Answered(results=results, microseconds=microseconds, broken=broken)
        finally:
            self._turn.release()

    def _wait_for_turn(self, is_wanted: Callable[[], bool]) -> None:
        while not self._turn.acquire(timeout=_LOOK_SECONDS):
            if not is_wanted():
                raise Unwanted

    def _answer_anew(
        self,
        lines: Sequence[PoolLine],
        batch_id: str,
        is_wanted: Callable[[], bool],
        broken_before: Collection[int],
    ) -> tuple[list[LineResult], Sequence[int]]:
        """Return results, and the numbers of lines that another worker is to compute."""
        results, broken, is_out = self._try(lines, batch_id, is_wanted)
        again = [line for line in broken if line.line_no not in broken_before]
        lost = [line for line in broken if line.line_no in broken_before]
        if broken:
            is_out = not self._reload() or is_out
        if again and not is_out:
            found, lost_again, _ = self._try(again, batch_id, is_wanted)
            results, lost, again = results + found, lost + lost_again, []
        maker = FailureMaker(batch_id)
        failures = [maker.failure(line.line_no, line.custom_id, message=_BROKEN_TWICE) for line in lost]
        return results + failures, [line.line_no for line in again]

    def _try(
        self, lines: Sequence[PoolLine], batch_id: str, is_wanted: Callable[[], bool]
    ) -> tuple[list[LineResult], list[PoolLine], bool]:
        """Return results, the lines that were broken, and whether so many were in a row that the worker is out."""
        results, broken, is_out = [], [], False
        for line, result in zip(lines, self._answer(lines, batch_id, is_wanted), strict=True):
            if result is not None:
                results.append(result)
                self._num_broken_in_a_row = 0
                continue
            log.warning("line broke, what was computed is no numbers batch_id=%s line_no=%s", batch_id, line.line_no)
            broken.append(line)
            self._num_broken_in_a_row += 1
            if self._num_broken_in_a_row == MAX_IN_A_ROW:
                self._on_broken(f"the model gave {MAX_IN_A_ROW} lines in a row no numbers: NaN or infinite")
                is_out = True
        if is_out:
            self._num_broken_in_a_row = 0
        return results, broken, is_out

    def _reload(self) -> bool:
        """Read the model anew; where that cannot be done the worker is out."""
        try:
            self._model.reload()
        except EngineError as error:
            self._on_broken(f"the model was broken and cannot be read anew: {error}")
            return False
        return True

    def _answer(
        self, lines: Sequence[PoolLine], batch_id: str, is_wanted: Callable[[], bool]
    ) -> list[LineResult | None]:
        """Return the results in the order of the lines, None for one whose rows are broken."""
        try:
            return [
                self._result(line, found, batch_id) if are_numbers(found).all() else None
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
