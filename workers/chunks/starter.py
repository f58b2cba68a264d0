"""Starts prepared lines, those of a tenant with a limit in groups, once the most that they may use is covered.

What the budget has no room for waits here while other lines of the chunk run; then it is as the batch wants it: the
chunk waits for room, or the lines fail. Without a limit nothing is counted and nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs.accounts.budgets import Covered
from jobs.chunks import waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.states import UncoveredLines
from workers.chunks.engine_lines import EngineLines
from workers.chunks.lease import Abandoned, ChunkLease
from workers.chunks.parts import WorkerParts
from workers.chunks.results import ChunkResults
from workers.prompts import PreparedLine


class LineStarter:
    """`len()` is how many lines are prepared and not started."""

    def __init__(
        self, claim: ClaimedChunk, parts: WorkerParts, *, lease: ChunkLease, lines: EngineLines, results: ChunkResults
    ) -> None:
        self._claim = claim
        self._parts = parts
        self._lease = lease
        self._lines = lines
        self._results = results
        self._held: list[tuple[PreparedLine, Sequence[int]]] = []
        self._num_new = 0  # of the held ones, since they were last to be covered
        self._tried_at = parts.monotonic()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, prepared: PreparedLine, output: Sequence[int]) -> None:
        """Start a line, to go on after `output`; where there is a limit, with the next group."""
        if self._claim.is_limited:
            self._held.append((prepared, output))
            self._num_new += 1
        else:
            self._lines.start(prepared, output)

    def start_if_due(self) -> None:
        """Start a group that is large, or has waited as long as a result may. Raises Abandoned."""
        settings = self._parts.settings
        is_old = self._parts.monotonic() - self._tried_at >= settings.flush_seconds
        if self._num_new and (is_old or self._num_new >= settings.flush_results):
            self.start()

    def start(self) -> Covered | None:
        """Start the lines that there is room for; return what was found, None without any line. Raises Abandoned."""
        if not self._held:
            return None
        held = self._held
        found = self._lease.cover([prepared.most_tokens for prepared, _ in held])
        self._held = [line for line, fits in zip(held, found.fits, strict=True) if not fits]
        self._num_new, self._tried_at = 0, self._parts.monotonic()
        for (prepared, output), fits in zip(held, found.fits, strict=True):
            if fits:
                self._start_one(prepared, output)
        return found

    def start_or_give_up(self) -> None:
        """Start lines now that no other of the chunk runs; where none can be, wait or fail them. Raises Abandoned."""
        found = self.start()
        if found is None or found.quota is None or any(found.fits):
            return
        if found.others_run or self._claim.uncovered_lines == UncoveredLines.WAIT:
            least = min(prepared.most_tokens for prepared, _ in self._held)
            self._lease.run(lambda session, claim: waiting.lay_aside(session, claim, tokens=least))
            raise Abandoned(f"the tenant's budget has no room for {least} tokens; the rest of the chunk waits")
        for prepared, _ in self._held:
            self._results.leave_out(prepared, found.quota)
        self._held = []

    def _start_one(self, prepared: PreparedLine, output: Sequence[int]) -> None:
        try:
            self._lines.start(prepared, output)
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self._results.give_up(prepared.line_no, prepared.custom_id, error)
