"""Runs one claimed chunk from first line to last: feeds the engine, writes results, holds the lease, completes."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from jobs.chunks import checkpoints
from jobs.chunks.leasing import ClaimedChunk
from workers.chunks.copies import ChunkCopies
from workers.chunks.ends import ChunkEnds
from workers.chunks.engine_lines import EngineLines
from workers.chunks.feeder import ChunkFeeder
from workers.chunks.held import HeldChunk
from workers.chunks.parts import WorkerParts
from workers.chunks.results import ChunkResults
from workers.chunks.scores import ChunkScores
from workers.chunks.starter import LineStarter
from workers.line_run import LineRun


class ChunkRun(HeldChunk):
    """One claim."""

    def __init__(self, claim: ClaimedChunk, parts: WorkerParts) -> None:
        super().__init__(claim, parts)
        self._parts = parts
        lease = self._lease
        lines = EngineLines(claim, parts)
        scores = ChunkScores(parts.scores)
        results = ChunkResults(claim, parts, lease=lease, lines=lines, scores=scores)
        ends = ChunkEnds(
            lease=lease,
            lines=lines,
            results=results,
            settings=parts.settings,
            drain=parts.drain,
            is_wedged=lambda: parts.host.is_wedged,
            leave=self._save,
            monotonic=parts.monotonic,
        )
        starter = LineStarter(claim, parts, lease=lease, lines=lines, results=results, scores=scores)
        self._copies = ChunkCopies(claim.copies)
        self._feeder = ChunkFeeder(
            claim, parts, lease=lease, starter=starter, results=results, ends=ends, copies=self._copies
        )
        self._lines, self._results, self._ends, self._starter, self._scores = lines, results, ends, starter, scores

    def _work_off(self) -> None:
        try:
            with self._parts.worker_time.divided_with(self._lines.time):
                self._feeder.feed()
                self._finish_started()
                while self._copies:
                    self._feeder.feed_copies()
                    self._finish_started()
        finally:
            self._lines.drop_all()
            self._scores.leave_all()

    def _save(self, session: Session, claim: ClaimedChunk, runs: Sequence[LineRun]) -> None:
        """Keep the output that lines have so far, and which of them broken rows have ended."""
        outputs = {run.prepared.line_no: run.checkpoint for run in runs if run.checkpoint or run.num_broken}
        checkpoints.save(session, claim, outputs, model_fingerprint=self._parts.model_fingerprint)

    def _finish_started(self) -> None:
        """Until every line that was fed has its result: those that wait for room, too."""
        self._collect()
        while self._starter:
            self._ends.hold_lease_if_due()
            self._ends.give_back_if_drained()
            self._starter.start_or_give_up()
            self._collect()

    def _collect(self) -> None:
        """Until every line has its result: finish lines that have ended, flush when due, hold the lease."""
        while self._lines or self._results:
            if self._lines:
                for run in self._lines.wait_finished(self._parts.settings.flush_seconds):
                    self._results.finish(run)
                    if self._results.are_large:
                        break  # the others wait as tokens, which take less memory
            if self._results.is_due:
                self._results.write(is_last=not (self._lines or self._starter or self._copies))
                self._ends.end_if_unwanted()
                self._starter.start()  # in the room that lines have left
            self._ends.hold_lease_if_due()
            if self._lines and self._parts.drain.is_over:
                self._ends.give_back()
