"""Starts prepared lines in groups, those of a tenant with a limit once the most that they may use is covered.

What the budget has no room for waits here while other lines of the chunk run; then it is as the batch wants it: the
chunk waits for room, or the lines fail. Without a limit nothing is counted and nothing waits but the few lines that ask
for more log-probabilities of their prompts than this worker has room for just now.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import not_

from jobs.accounts.covers import Covered
from jobs.chunks import waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.states import UncoveredLines
from workers.chunks.engine_lines import EngineLines
from workers.chunks.lease import Abandoned, ChunkLease
from workers.chunks.parts import WorkerParts
from workers.chunks.results import ChunkResults
from workers.chunks.scores import ChunkScores
from workers.prompts import PreparedLine

GROUP_LINES = 16
"""Lines that are handed to the engine together, where nothing is to be covered: fewer messages, less processor time."""
GROUP_SECONDS = 0.02
"""How long the first of them waits for others, at most, and for the end of what is being prepared."""


class LineStarter:
    """`len()` is how many lines are prepared and not started."""

    def __init__(
        self,
        claim: ClaimedChunk,
        parts: WorkerParts,
        *,
        lease: ChunkLease,
        lines: EngineLines,
        results: ChunkResults,
        scores: ChunkScores,
    ) -> None:
        self._claim = claim
        self._parts = parts
        self._lease = lease
        self._lines = lines
        self._results = results
        self._scores = scores
        self._held: list[tuple[PreparedLine, Sequence[int] | None]] = []  # those first that were not covered
        self._num_uncovered = 0
        self._num_new = 0  # of the held ones, since they were last to be covered
        self._tried_at = parts.monotonic()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, prepared: PreparedLine, output: Sequence[int] | None) -> None:
        """Start a line with what is kept of it, as `EngineLines.start` does; where there is a limit, with others."""
        self._held.append((prepared, output))
        self._num_new += 1

    def start_if_due(self) -> None:
        """Start a group that is large, or old: as a result may be where it is covered first. Raises Abandoned."""
        settings = self._parts.settings
        seconds, num_lines = GROUP_SECONDS, GROUP_LINES
        if self._claim.is_limited:
            seconds, num_lines = settings.flush_seconds, settings.flush_results
        is_old = self._parts.monotonic() - self._tried_at >= seconds
        if self._num_new and (is_old or self._num_new >= num_lines):
            self.start()

    def start(self) -> Covered | None:
        """Start the lines that there is room for; return what was found, None where nothing was to be covered.

        Raises Abandoned.
        """
        if not self._held:
            return None
        has_room = [self._scores.enter(prepared.line_no, prepared.num_prompt_scores) for prepared, _ in self._held]
        tried, roomless = list(compress(self._held, has_room)), list(compress(self._held, map(not_, has_room)))
        found = None
        if self._claim.is_limited and tried:
            costs = [self._cost_of(prepared) for prepared, _ in tried]
            found = self._lease.cover([tokens for tokens, _ in costs], [picos for _, picos in costs])
        fits = [True] * len(tried) if found is None else found.fits
        uncovered = list(compress(tried, map(not_, fits)))
        self._scores.leave(prepared.line_no for prepared, _ in uncovered)
        self._held, self._num_uncovered = [*uncovered, *roomless], len(uncovered)
        self._num_new, self._tried_at = 0, self._parts.monotonic()
        if any(fits):
            for prepared, error in self._lines.start(compress(tried, fits)):
                self._results.give_up(prepared.line_no, prepared.custom_id, error)
        return found

    def start_or_give_up(self) -> None:
        """Start lines now that no other of the chunk runs; where none can be, wait or fail them. Raises Abandoned."""
        found = self.start()
        if found is None and self._held and not self._lines:  # other chunks have the room
            self._scores.wait(self._parts.settings.flush_seconds)
        if found is None or found.quota is None or any(found.fits):
            return
        uncovered = [prepared for prepared, _ in self._held[: self._num_uncovered]]
        if found.others_run or self._claim.uncovered_lines == UncoveredLines.WAIT:
            costs = [self._cost_of(prepared) for prepared in uncovered]
            tokens, picos = min(costs, key=lambda cost: found.excess(*cost))
            self._lease.run(lambda session, claim: waiting.lay_aside(session, claim, tokens=tokens, picos=picos))
            raise Abandoned(f"the tenant's budgets have no room for {tokens} tokens; the rest of the chunk waits")
        for prepared in uncovered:
            self._results.leave_out(prepared, found)
        del self._held[: self._num_uncovered]

    def _cost_of(self, prepared: PreparedLine) -> tuple[int, int]:
        """Return the tokens that a line may use, and what it may cost."""
        return prepared.most_tokens, self._lines.most_picos_of(prepared)
