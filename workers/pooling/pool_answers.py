"""Answers lines with one pooling model that all chunks of a worker share, one piece at a time."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from workers.pooling.turns import Asker, PieceTurns
from workers.prompt_lengths import Unwanted

log = logging.getLogger(__name__)

_PIECE_TOKENS = 4096
"""Tokens computed in one turn; between two turns, more urgent work and other tenants have theirs."""

_BROKEN_TWICE = (
    "The model computed NaN or infinite values for this line, twice. It is not billed. Report it to the operator of "
    "this service."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The outcomes of a group of lines."""

    outcomes: Mapping[int, LineResult | Exception]
    """By line number: a result, or the internal error that ended the line."""
    microseconds: int
    """Model time of the group."""
    broken: Sequence[int] = ()
    """Numbers of lines whose rows were broken, and which are for another worker: this one is out of service."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """One call of `answer`, and its model time."""

    asker: Asker
    is_wanted: Callable[[], bool]
    on_broken: Callable[[str], None]
    seconds: float = 0.0

    @property
    def batch_id(self) -> str:
        return self.asker.batch_id


class PoolAnswers:
    """Computes answers. Safe to use from the threads of several chunks."""

    def __init__(
        self,
        model: PoolModel[Any],
        *,
        name: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._name = name
        self._num_broken_in_a_row = 0
        self._monotonic = monotonic
        self._turns = PieceTurns()
        self._lock = threading.Lock()  # for the count of broken lines
        self.running = RunningCount()

    def answer(
        self,
        lines: Sequence[PoolLine],
        *,
        asker: Asker,
        is_wanted: Callable[[], bool],
        on_broken: Callable[[str], None],
        broken_before: Collection[int] = (),
    ) -> Answered:
        """Return the results of lines. A line that cannot be computed fails alone. Raise Unwanted.

        A line with broken rows is computed once more after the model was reloaded, unless its number is in
        `broken_before`, because rows of it were broken on another worker: then it fails. `on_broken(reason)` is called
        when line after line is broken: this worker is to be taken out of service once the outcomes are reported.
        """
        work = _Work(asker=asker, is_wanted=is_wanted, on_broken=on_broken)
        with self.running.including(asker.batch_id, len(lines)):
            outcomes, broken = self._answer_anew(lines, work, broken_before)
        return Answered(outcomes=outcomes, microseconds=round(work.seconds * 1e6), broken=broken)

    @contextmanager
    def _turn(self, work: _Work) -> Iterator[None]:
        with self._turns.held(work.asker, work.is_wanted):
            began = self._monotonic()
            try:
                yield
            finally:
                work.seconds += self._monotonic() - began

    def _answer_anew(
        self, lines: Sequence[PoolLine], work: _Work, broken_before: Collection[int]
    ) -> tuple[dict[int, LineResult | Exception], Sequence[int]]:
        """Return the outcomes, and the numbers of lines that another worker is to compute."""
        outcomes, broken, is_out = self._try(lines, work)
        again = [line for line in broken if line.line_no not in broken_before]
        lost = [line for line in broken if line.line_no in broken_before]
        if broken:
            is_out = not self._reload(work) or is_out
        if again and not is_out:
            repeated, lost_again, _ = self._try(again, work)
            outcomes, lost, again = outcomes | repeated, lost + lost_again, []
        maker = FailureMaker(work.batch_id)
        for line in lost:
            outcomes[line.line_no] = maker.failure(line.line_no, line.custom_id, message=_BROKEN_TWICE)
        return outcomes, [line.line_no for line in again]

    def _try(
        self, lines: Sequence[PoolLine], work: _Work
    ) -> tuple[dict[int, LineResult | Exception], list[PoolLine], bool]:
        """Return the outcomes, the broken lines, and whether too many in a row were broken for this worker."""
        answers = self._answer(lines, work)
        broken = [line for line, result in zip(lines, answers, strict=True) if result is None]
        for line in broken:
            log.warning("line broke, its result is NaN or infinite batch_id=%s line_no=%s", work.batch_id, line.line_no)
        is_out = self._count_broken((result is None for result in answers), work)
        outcomes = {line.line_no: one for line, one in zip(lines, answers, strict=True) if one is not None}
        return outcomes, broken, is_out

    def _count_broken(self, are_broken: Iterable[bool], work: _Work) -> bool:
        """Count broken lines in a row, of all chunks; tell whether they are too many for this worker."""
        is_out = False
        with self._lock:
            for is_broken in are_broken:
                self._num_broken_in_a_row = self._num_broken_in_a_row + 1 if is_broken else 0
                if self._num_broken_in_a_row == MAX_IN_A_ROW:
                    work.on_broken(f"the model gave NaN or infinite values for {MAX_IN_A_ROW} lines in a row")
                    is_out = True
            if is_out:
                self._num_broken_in_a_row = 0
        return is_out

    def _reload(self, work: _Work) -> bool:
        """Reload the model; if that fails, the worker is out of service."""
        try:
            with self._turn(work):
                self._model.reload()
        except EngineError as error:
            work.on_broken(f"the model was broken and cannot be reloaded: {error}")
            return False
        return True

    def _answer(self, lines: Sequence[PoolLine], work: _Work) -> list[LineResult | Exception | None]:
        """Return the outcomes in the order of the lines, None for a line with broken rows."""
        try:
            return [
                self._result(line, numbers, work.batch_id) if are_numbers(numbers).all() else None
                for line, numbers in zip(lines, self._computed(lines, work), strict=True)
            ]
        except Unwanted:
            raise
        except Exception as error:  # noqa: BLE001 - passed to the chunk, which records it
            if len(lines) > 1:
                return [outcome for line in lines for outcome in self._answer([line], work)]
            return [error]

    def _computed(self, lines: Sequence[PoolLine], work: _Work) -> Iterator[Numbers]:
        """Yield the numbers of each line's inputs; the inputs of all lines are computed in pieces."""
        inputs = [one for line in lines for one in line.inputs]
        rows: list[Any] = []
        while len(rows) < len(inputs):
            if not work.is_wanted():
                raise Unwanted
            end, num_tokens = len(rows), 0
            while end < len(inputs) and (num_tokens == 0 or num_tokens + len(inputs[end].token_ids) <= _PIECE_TOKENS):
                num_tokens += len(inputs[end].token_ids)
                end += 1
            with self._turn(work):
                rows.extend(self._model.compute(inputs[len(rows) : end]))
        numbers = iter(rows)
        for line in lines:
            yield np.array(list(itertools.islice(numbers, len(line.inputs))))

    def _result(self, line: PoolLine, numbers: Numbers, batch_id: str) -> LineResult:
        answer_id = response_id(self._model.kind, batch_id, line.line_no)
        body = self._model.body(line, numbers, response_id=answer_id, name=self._name)
        content = output_line(batch_id, line.line_no, line.custom_id, status_code=200, body=body)
        return LineResult(line_no=line.line_no, status_code=200, line=content, input_tokens=line.most_tokens)
