"""Answers lines with one pooling model in this process, one group of a chunk's lines at a time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.errors import ServiceError
from jobs.lines.endpoints import parse_request
from jobs.lines.reading import RawLine, parse_line
from jobs.states import Priority
from workers.chunks.answerer import ChunkLines, Ended, Output, Room, Stats
from workers.chunks.ends import STALL_SECONDS
from workers.chunks.engine_lines import ENGINE_PRIORITY
from workers.chunks.line_results import FailureMaker
from workers.chunks.services import Services
from workers.pooling.lines import PoolLine, PoolModel, next_group
from workers.pooling.pool_answers import PoolAnswers
from workers.pooling.turns import Asker
from workers.prompt_lengths import Unwanted


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """One model, its answers, and the services around it."""

    services: Services
    model: PoolModel[Any]
    answers: PoolAnswers
    """Computed by the model."""


class PoolAnswerer:
    """The `Answerer` of a worker whose model answers with vectors or scores."""

    def __init__(self, parts: PoolParts) -> None:
        self._parts = parts

    def start(self, *, is_busy: Callable[[], bool]) -> int:
        return self._parts.model.max_tokens

    def open(self, claim: ClaimedChunk) -> PoolLines:
        return PoolLines(claim, self._parts)

    def stats(self) -> Stats:
        running = self._parts.answers.running.by_batch()
        return Stats(
            metrics={"num_requests_running": sum(lines.num_lines for lines in running.values())}, running_lines=running
        )

    def drain(self) -> None: ...

    def close(self) -> None: ...


class PoolLines(ChunkLines[PoolLine]):
    """Computes one group at a time in a separate thread; its results are written before the next group starts."""

    fingerprint = ""
    """Empty, as only the fact that a broken row ended a line is kept, which does not depend on the model's files."""
    group_seconds = math.inf
    """Infinite: lines wait until a group is full, as starting with fewer gains nothing."""

    def __init__(self, claim: ClaimedChunk, parts: PoolParts) -> None:
        super().__init__(claim, FailureMaker(claim.batch_id, budget_advice="Ask for a higher limit."))
        self._parts = parts
        self._monotonic = parts.services.monotonic
        self.group_lines = parts.services.settings.flush_results
        self._open: set[int] = set()  # numbers of the lines of the running group
        self._broken: set[int] = set()  # numbers of the lines whose rows were broken, which are for another worker
        self._is_computing = False
        self._moved_at = 0.0
        self._microseconds = 0

    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> PoolLine:
        assert raw.content is not None
        line = parse_line(raw.content, line_no=raw.line_no, endpoint=self.claim.endpoint)
        request = parse_request(self.claim.endpoint, line.body)
        with room():
            inputs = tuple(self._parts.model.tokenize(request, is_wanted=is_wanted))
        return PoolLine(line_no=line.line_no, custom_id=line.custom_id, request=request, inputs=inputs)

    def admit(self, lines: Sequence[PoolLine]) -> Sequence[bool]:
        num = 0 if self._open else len(next_group(lines, max_lines=self.group_lines))
        return [index < num for index in range(len(lines))]

    def submit(
        self, lines: Sequence[tuple[PoolLine, Output | None]], on_end: Callable[[Ended[PoolLine]], None]
    ) -> Mapping[int, Exception]:
        self._open = {line.line_no for line, _ in lines}
        self._is_computing, self._moved_at = True, self._monotonic()
        broken_before = {line.line_no for line, output in lines if output is not None}
        compute = partial(self._compute, [line for line, _ in lines], broken_before, on_end)
        threading.Thread(target=compute, name="compute", daemon=True).start()
        return {}

    def _compute(
        self, lines: Sequence[PoolLine], broken_before: set[int], on_end: Callable[[Ended[PoolLine]], None]
    ) -> None:
        outcomes: Mapping[int, LineResult | Exception] = {}
        reasons: list[str] = []
        try:
            outcomes = self._outcomes(lines, broken_before, reasons.append)
        except Unwanted:
            lines = ()
        except Exception as error:  # noqa: BLE001 - passed to the chunk, which records it
            outcomes = {line.line_no: error for line in lines}
        self._is_computing = False
        for line in lines:
            on_end(Ended.by(line, outcomes[line.line_no]))
        for reason in reasons:  # last, so that a released chunk keeps its broken lines for the next worker
            self._parts.services.drain.take_out(reason)

    def _outcomes(
        self, lines: Sequence[PoolLine], broken_before: set[int], on_broken: Callable[[str], None]
    ) -> Mapping[int, LineResult | Exception]:
        """Return a result for each line, or the error for which another worker is to compute it. Raise Unwanted."""
        asker = Asker(
            batch_id=self.claim.batch_id,
            tenant=self.claim.tenant_id,
            priority=ENGINE_PRIORITY[Priority(self.claim.priority)],
        )
        answers = self._parts.answers
        answered = answers.answer(
            lines, asker=asker, is_wanted=self._is_wanted, on_broken=on_broken, broken_before=broken_before
        )
        self._microseconds += answered.microseconds
        self._broken.update(answered.broken)
        away = ServiceError("the model gave NaN or infinite values for some lines; another worker computes them")
        return {**answered.outcomes, **dict.fromkeys(answered.broken, away)}

    def _is_wanted(self) -> bool:
        self._moved_at = self._monotonic()
        return bool(self._open)

    def drop(self, line_no: int) -> None:
        self._open.discard(line_no)

    def drop_all(self) -> Mapping[int, Output]:
        self._open.clear()
        return {line_no: [] for line_no in list(self._broken)}  # a group may still be computed

    @property
    def is_wedged(self) -> bool:
        return self._is_computing and self._monotonic() - self._moved_at > STALL_SECONDS

    def pop_microseconds(self) -> int:
        microseconds, self._microseconds = self._microseconds, 0
        return microseconds
