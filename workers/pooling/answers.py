"""Answers lines by one model that pools, which all chunks of a worker share: one piece at a time.

Knows no lease and no SQL.
"""

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
"""Computed in one turn: between two, what is more urgent and other tenants have theirs."""

_BROKEN_TWICE = (
    "The model's arithmetic broke on this line, twice: what was computed is NaN or infinite. It is not billed. Report "
    "it to who runs this service."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What became of a group of lines."""

    outcomes: Mapping[int, LineResult | Exception]
    """By line number: a result, or the fault of ours that ended the line."""
    microseconds: int
    """That the model was at work for them."""
    broken: Sequence[int] = ()
    """Numbers of lines whose rows were broken, and which are for another worker: this one is out."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """What is asked for, and how long the model was at work for it."""

    asker: Asker
    is_wanted: Callable[[], bool]
    on_broken: Callable[[str], None]
    seconds: float = 0.0

    @property
    def batch_id(self) -> str:
        return self.asker.batch_id


class PoolAnswers:
    """Safe to use from the threads of several chunks."""

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
        self._lock = threading.Lock()  # of what is known of broken lines
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
        """Return the results of lines. A line that cannot be computed fails alone. Raises Unwanted.

        A line whose rows are broken is computed once more after the model was read anew, but for those by whose number
        that is known of another worker: their next such end is their last, too. `on_broken(reason)` is called where the
        model gives one line after the other no numbers: this worker is to be taken out, once the lines are told of.
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
        """Return outcomes, and the numbers of lines that another worker is to compute."""
        outcomes, broken, is_out = self._try(lines, work)
        again = [line for line in broken if line.line_no not in broken_before]
        lost = [line for line in broken if line.line_no in broken_before]
        if broken:
            is_out = not self._reload(work) or is_out
        if again and not is_out:
            found, lost_again, _ = self._try(again, work)
            outcomes, lost, again = outcomes | found, lost + lost_again, []
        maker = FailureMaker(work.batch_id)
        for line in lost:
            outcomes[line.line_no] = maker.failure(line.line_no, line.custom_id, message=_BROKEN_TWICE)
        return outcomes, [line.line_no for line in again]

    def _try(
        self, lines: Sequence[PoolLine], work: _Work
    ) -> tuple[dict[int, LineResult | Exception], list[PoolLine], bool]:
        """Return outcomes, the lines that were broken, and whether so many were in a row that the worker is out."""
        answers = self._answer(lines, work)
        broken = [line for line, result in zip(lines, answers, strict=True) if result is None]
        for line in broken:
            log.warning(
                "line broke, what was computed is no numbers batch_id=%s line_no=%s", work.batch_id, line.line_no
            )
        is_out = self._count_broken((result is None for result in answers), work)
        outcomes = {line.line_no: one for line, one in zip(lines, answers, strict=True) if one is not None}
        return outcomes, broken, is_out

    def _count_broken(self, are_broken: Iterable[bool], work: _Work) -> bool:
        """Count those in a row, of whatever chunk; tell whether they are so many that the worker is out."""
        is_out = False
        with self._lock:
            for is_broken in are_broken:
                self._num_broken_in_a_row = self._num_broken_in_a_row + 1 if is_broken else 0
                if self._num_broken_in_a_row == MAX_IN_A_ROW:
                    work.on_broken(f"the model gave {MAX_IN_A_ROW} lines in a row no numbers: NaN or infinite")
                    is_out = True
            if is_out:
                self._num_broken_in_a_row = 0
        return is_out

    def _reload(self, work: _Work) -> bool:
        """Read the model anew; where that cannot be done the worker is out."""
        try:
            with self._turn(work):
                self._model.reload()
        except EngineError as error:
            work.on_broken(f"the model was broken and cannot be read anew: {error}")
            return False
        return True

    def _answer(self, lines: Sequence[PoolLine], work: _Work) -> list[LineResult | Exception | None]:
        """Return the outcomes in the order of the lines, None for one whose rows are broken."""
        try:
            return [
                self._result(line, found, work.batch_id) if are_numbers(found).all() else None
                for line, found in zip(lines, self._found(lines, work), strict=True)
            ]
        except Unwanted:
            raise
        except Exception as error:  # noqa: BLE001 - told to the chunk, which records it
            if len(lines) > 1:
                return [outcome for line in lines for outcome in self._answer([line], work)]
            return [error]

    def _found(self, lines: Sequence[PoolLine], work: _Work) -> Iterator[Numbers]:
        """Yield what was asked of the inputs of each line: those of all lines are computed by pieces."""
        inputs = [one for line in lines for one in line.inputs]
        found: list[Any] = []
        while len(found) < len(inputs):
            if not work.is_wanted():
                raise Unwanted
            end, num_tokens = len(found), 0
            while end < len(inputs) and (num_tokens == 0 or num_tokens + len(inputs[end].token_ids) <= _PIECE_TOKENS):
                num_tokens += len(inputs[end].token_ids)
                end += 1
            with self._turn(work):
                found.extend(self._model.compute(inputs[len(found) : end]))
        numbers = iter(found)
        for line in lines:
            yield np.array(list(itertools.islice(numbers, len(line.inputs))))

    def _result(self, line: PoolLine, found: Numbers, batch_id: str) -> LineResult:
        answer_id = response_id(self._model.kind, batch_id, line.line_no)
        body = self._model.body(line, found, response_id=answer_id, name=self._name)
        content = output_line(batch_id, line.line_no, line.custom_id, status_code=200, body=body)
        return LineResult(line_no=line.line_no, status_code=200, line=content, input_tokens=line.most_tokens)
