"""Runs one claimed chunk by a model that pools: prepares, covers, computes and writes its lines, holds the lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

from jobs.chunks import checkpoints, leasing, waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.lines.body_checks import BodyError
from jobs.lines.endpoints import parse_request
from jobs.lines.reading import InputLine, RawLine, parse_line
from jobs.states import Priority, UncoveredLines
from workers.chunks.ends import ChunkEnds
from workers.chunks.engine_lines import ENGINE_PRIORITY
from workers.chunks.feeder import LONG_LINE_BYTES
from workers.chunks.held import HeldChunk, Services
from workers.chunks.lease import Abandoned
from workers.chunks.line_results import FailureMaker
from workers.chunks.room import Room
from workers.pooling.answers import Answered, PoolAnswers
from workers.pooling.lines import PoolLine, PoolModel, next_group
from workers.pooling.turns import Asker
from workers.prompt_lengths import Unwanted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts(Services):
    """One model, and the services around it."""

    model: PoolModel[Any]
    answers: PoolAnswers
    """Computed by it."""
    room: Room = field(default_factory=Room)
    """For long lines while they are tokenised."""


class _Nothing:
    """What runs, and what is unwritten, beside a group that is computed: its results are written as it ends."""

    are_large = False

    def drop_all(self) -> list[None]:
        return []

    def finished(self) -> Iterable[None]:
        return ()

    def __len__(self) -> int:
        return 0

    def finish(self, run: None) -> None: ...

    def write(self) -> None: ...


class PoolRun(HeldChunk):
    """One claim."""

    def __init__(self, claim: ClaimedChunk, parts: PoolParts) -> None:
        super().__init__(claim, parts)
        self._parts = parts
        self._failures = FailureMaker(claim.batch_id)
        self._broken_before: set[int] = set()
        nothing = _Nothing()
        self._ends: ChunkEnds[None] = ChunkEnds(
            lease=self._lease,
            lines=nothing,
            results=nothing,
            settings=parts.settings,
            drain=parts.drain,
            is_wedged=lambda: False,  # what is beside the lease tells by asking whether it is wanted
            monotonic=parts.monotonic,
        )

    def _work_off(self) -> None:
        content = self._ends.read_content(self._claim, self._parts.storage)
        done = self._lease.run(leasing.lines_done)
        self._broken_before = self._lease.run(checkpoints.read_broken)
        # Before any line is looked at: one that ends the worker must be told from the others of its chunk.
        self._lease.run(leasing.start)
        self._answer([line for line in self._claim.split(content) if line.line_no not in done])

    def _answer(self, raws: Sequence[RawLine]) -> None:
        """Write a result for every line."""
        lines, refused = self._ends.hold_lease_during(lambda is_wanted: self._prepared(raws, is_wanted))
        self._write(refused, is_last=not lines)
        while lines:
            group = next_group(lines, max_lines=self._parts.settings.flush_results)
            rest = lines[len(group) :]
            if self._claim.is_limited:
                group, rest = self._cover(group, rest)
            if group:
                found = self._ends.hold_lease_during(partial(self._answered, group))
                if found.broken:
                    self._lease.run(partial(checkpoints.save_broken, line_nos=found.broken))
                is_last = not rest and not found.broken
                self._write(found.results, is_last=is_last, microseconds=found.microseconds)
            lines = rest

    def _prepared(
        self, raws: Sequence[RawLine], is_wanted: Callable[[], bool]
    ) -> tuple[Sequence[PoolLine], Sequence[LineResult]]:
        """Return the lines that can be computed, and the results of the others. Raises Unwanted."""
        lines, refused = [], []
        for raw in raws:
            assert raw.content is not None, "validation refused over-long lines"
            line = parse_line(raw.content, line_no=raw.line_no, endpoint=self._claim.endpoint)
            try:
                with self._room_for(len(raw.content), is_wanted):
                    lines.append(self._prepare(line, is_wanted))
            except BodyError as error:
                refused.append(self._failures.refusal(line, error))
            except Unwanted:
                raise
            except Exception as error:
                log.exception("line failed unexpectedly batch_id=%s line_no=%s", self._claim.batch_id, raw.line_no)
                refused.append(self._failures.fault(raw.line_no, line.custom_id, error=error))
        return lines, refused

    def _room_for(self, size_bytes: int, is_wanted: Callable[[], bool]) -> AbstractContextManager[None]:
        if size_bytes < LONG_LINE_BYTES:
            return nullcontext()
        return self._parts.room.inside(size_bytes, is_wanted=is_wanted)

    def _prepare(self, line: InputLine, is_wanted: Callable[[], bool]) -> PoolLine:
        request = parse_request(self._claim.endpoint, line.body)
        inputs = tuple(self._parts.model.tokenize(request, is_wanted=is_wanted))
        return PoolLine(line_no=line.line_no, custom_id=line.custom_id, request=request, inputs=inputs)

    def _answered(self, lines: Sequence[PoolLine], is_wanted: Callable[[], bool]) -> Answered:
        asker = Asker(
            batch_id=self._claim.batch_id,
            tenant=self._claim.tenant_id,
            priority=ENGINE_PRIORITY[Priority(self._claim.priority)],
        )
        return self._parts.answers.answer(lines, asker=asker, is_wanted=is_wanted, broken_before=self._broken_before)

    def _cover(
        self, group: Sequence[PoolLine], rest: Sequence[PoolLine]
    ) -> tuple[Sequence[PoolLine], Sequence[PoolLine]]:
        """Return the lines of a group that the budgets cover, and what is left to do behind them.

        Where none is covered they wait for room, which raises Abandoned, or fail: as the batch wants it.
        """
        costs = [(line.most_tokens, self._picos_of(line)) for line in group]
        found = self._lease.cover([tokens for tokens, _ in costs], [picos for _, picos in costs])
        if any(found.fits):
            return list(compress(group, found.fits)), [*compress(group, map(not_, found.fits)), *rest]
        if found.others_run or self._claim.uncovered_lines == UncoveredLines.WAIT:
            tokens, picos = min(costs, key=lambda cost: found.excess(*cost))
            self._lease.run(lambda session, claim: waiting.lay_aside(session, claim, tokens=tokens, picos=picos))
            raise Abandoned(f"the tenant's budgets have no room for {tokens} tokens; the rest of the chunk waits")
        currency = self._parts.settings.currency
        self._write(
            [
                self._failures.uncovered(
                    line, found, most_picos=picos, currency=currency, advice="Ask for a higher limit."
                )
                for line, (_, picos) in zip(group, costs, strict=True)
            ],
            is_last=not rest,
        )
        return [], rest

    def _picos_of(self, line: PoolLine) -> int:
        return self._claim.prices.cost_picos(input_tokens=line.most_tokens, output_tokens=0)

    def _write(self, results: Sequence[LineResult], *, is_last: bool, microseconds: int = 0) -> None:
        """Write results, which also extends the lease, or ends it where it `is_last`. Raises Abandoned."""
        if results:
            self._lease.flush(results, most_running=0, most_picos=0, is_last=is_last, worker_microseconds=microseconds)
            self._ends.end_if_unwanted()
        if not is_last:
            self._ends.give_back_if_drained()
