"""Submits prepared lines in groups; lines of a tenant with a limit once their maximum use is covered.

Lines that the budget has no room for wait here while other lines of the chunk run; then, as the batch is configured,
the chunk waits for room or the lines fail. Without a limit nothing is counted, and only lines that the answerer does
not admit yet wait.
"""

from __future__ import annotations

from itertools import compress
from operator import not_
from typing import Generic

from jobs.accounts.covers import Covered
from jobs.chunks import waiting
from jobs.states import UncoveredLines
from workers.chunks.answerer import L, Output
from workers.chunks.lease import Abandoned
from workers.chunks.open_chunk import OpenChunk
from workers.chunks.results import ChunkResults


class LineStarter(Generic[L]):
    """Lines that are prepared and not submitted; `len()` is their number."""

    def __init__(self, chunk: OpenChunk[L], results: ChunkResults[L]) -> None:
        self._claim = chunk.claim
        self._lease = chunk.lease
        self._lines = chunk.lines
        self._submitted = chunk.submitted
        self._results = results
        self._settings = chunk.settings
        self._monotonic = chunk.services.monotonic
        self._held: list[tuple[L, Output | None]] = []  # uncovered lines first
        self._num_uncovered = 0
        self._num_new = 0  # held lines added since the last attempt to submit
        self._tried_at = self._monotonic()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, line: L, output: Output | None) -> None:
        """Add a line with its kept output, to be submitted together with others."""
        self._held.append((line, output))
        self._num_new += 1

    def start_if_due(self) -> None:
        """Submit a group that is large or old; with a limit, by the thresholds of results. Raise Abandoned."""
        seconds, num_lines = self._lines.group_seconds, self._lines.group_lines
        if self._claim.is_limited:
            seconds, num_lines = max(seconds, self._settings.flush_seconds), self._settings.flush_results
        is_old = self._monotonic() - self._tried_at >= seconds
        if self._num_new and (is_old or self._num_new >= num_lines):
            self.start()

    def start(self) -> Covered | None:
        """Submit the lines that there is room for; return what was covered, None if nothing had to be.

        Raise Abandoned.
        """
        if not self._held:
            return None
        admitted = self._lines.admit([line for line, _ in self._held])
        tried, others = list(compress(self._held, admitted)), list(compress(self._held, map(not_, admitted)))
        covered = self._cover([line for line, _ in tried]) if self._claim.is_limited and tried else None
        fits = [True] * len(tried) if covered is None else covered.fits
        uncovered = list(compress(tried, map(not_, fits)))
        self._lines.leave([line.line_no for line, _ in uncovered])
        self._held, self._num_uncovered = [*uncovered, *others], len(uncovered)
        self._num_new, self._tried_at = 0, self._monotonic()
        if any(fits):
            for line, error in self._submitted.submit(list(compress(tried, fits))):
                self._results.give_up(line.line_no, line.custom_id, error)
        return covered

    def start_or_give_up(self) -> None:
        """Submit lines when no other line of the chunk runs; if none can be, wait or fail them. Raise Abandoned."""
        self._results.write_all()  # what was paid without a result; its lines need no cover any more
        covered = self.start()
        if covered is None and self._held and not self._submitted:  # other chunks have the room
            self._lines.wait_for_room(self._settings.flush_seconds)
        if covered is None or covered.quota is None or any(covered.fits):
            return
        uncovered = [line for line, _ in self._held[: self._num_uncovered]]
        if covered.others_run or self._claim.uncovered_lines == UncoveredLines.WAIT:
            tokens, picos = min(map(self._submitted.most_of, uncovered), key=lambda cost: covered.excess(*cost))
            self._lease.run(lambda session, claim: waiting.lay_aside(session, claim, tokens=tokens, picos=picos))
            raise Abandoned(f"the tenant's budgets have no room for {tokens} tokens; the rest of the chunk waits")
        for line in uncovered:
            self._results.leave_out(line, covered)
        del self._held[: self._num_uncovered]

    def _cover(self, lines: list[L]) -> Covered:
        costs = [self._submitted.most_of(line) for line in lines]
        return self._lease.cover([tokens for tokens, _ in costs], [picos for _, picos in costs])
