"""Runs one claimed chunk from first line to last, with any answerer.

Reads lines, skips finished ones, covers budgets, submits, writes results, holds the lease, and ends it.
"""

from __future__ import annotations

import logging
from typing import Any

from jobs.chunks import leasing
from workers.chunks.answerer import ChunkLines
from workers.chunks.copies import ChunkCopies
from workers.chunks.ends import ChunkEnds
from workers.chunks.feeder import ChunkFeeder
from workers.chunks.lease import Abandoned, Outdone
from workers.chunks.open_chunk import OpenChunk
from workers.chunks.results import ChunkResults
from workers.chunks.services import Services
from workers.chunks.starter import LineStarter

log = logging.getLogger(__name__)


class ChunkRun:
    """The run of one claim."""

    def __init__(self, lines: ChunkLines[Any], services: Services) -> None:
        """`lines` are those of the claim, none of them submitted."""
        self._claim = lines.claim
        self._traces = services.traces
        self._flush_seconds = services.settings.flush_seconds
        chunk = OpenChunk.of(lines, services)
        self._lines, self._lease, self._submitted = lines, chunk.lease, chunk.submitted
        self._copies = ChunkCopies(lines.claim.copies)
        self._results = ChunkResults(chunk)
        self._ends = ChunkEnds(chunk, self._results)
        self._starter = LineStarter(chunk, self._results)
        self._feeder = ChunkFeeder(
            chunk, starter=self._starter, results=self._results, ends=self._ends, copies=self._copies
        )

    def run(self) -> bool:
        """Run until the chunk is done, released or lost; return whether it is done."""
        claim = self._claim
        with self._traces.span(
            "chunk",
            parent=claim.trace_context,
            batch_id=claim.batch_id,
            chunk_id=claim.chunk_id,
            worker_id=claim.worker_id,
            claimed_by="turn" if claim.hint_waited is None else "hint",
        ) as span:
            if claim.hint_waited is not None:
                span.set(hint_waited_seconds=claim.hint_waited.total_seconds())
            self._lease.trace_context = span.context
            is_done = self._run()
            span.set(is_done=is_done, tokens=self._lease.num_tokens)
        return is_done

    def _run(self) -> bool:
        claim = self._claim
        log.info("chunk started chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
        try:
            self._work_off()
            self._close()
        except Abandoned as reason:
            log.warning("chunk abandoned chunk_id=%s fence=%s reason=%s", claim.chunk_id, claim.fence, reason)
            return False
        else:
            log.info("chunk closed chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
            return True

    def _work_off(self) -> None:
        """Write a result for every line, and leave none running. Raise Abandoned if it was released or lost."""
        with self._lines.opened():
            try:
                self._feeder.feed()
                self._finish_submitted()
                while self._copies:
                    self._feeder.feed_copies()
                    self._finish_submitted()
            except Outdone as reason:
                self._ends.leave_to_other_engine(str(reason))
            finally:
                self._submitted.drop_all()

    def _finish_submitted(self) -> None:
        """Run until every line that was fed has its result, including those that wait for room."""
        self._collect()
        while self._starter:
            self._ends.hold_lease_if_due()
            self._ends.give_back_if_drained()
            self._starter.start_or_give_up()
            self._collect()

    def _collect(self) -> None:
        """Finish lines that end, write when due and hold the lease until every submitted line has its result."""
        while self._submitted or self._results:
            if self._submitted:
                self._finish_ended()
            if self._results.is_due:
                self._results.write(is_last=self._is_last)
                self._ends.end_if_unwanted()
                self._starter.start()  # lines that have ended left room
            self._ends.hold_lease_if_due()
            if self._submitted:
                self._ends.give_back_if_drained()

    def _finish_ended(self) -> None:
        for ended in self._submitted.wait_ended(self._flush_seconds):
            self._results.finish(ended)
            if self._results.are_large:
                break  # lines that wait take less memory than results
        self._ends.give_back_if_away()

    @property
    def _is_last(self) -> bool:
        """Tell whether no result will follow the unwritten ones."""
        return not (self._submitted or self._starter or self._copies or self._results.num_left)

    def _close(self) -> None:
        """End the chunk, unless its last flush has, or end its turn."""
        num_left = self._results.num_left
        if num_left:
            self._results.write_all()
            estimate = self._lines.estimate_left(num_left)
            self._lease.run(lambda session, claim: leasing.end_turn(session, claim, estimated_tokens=estimate))
        elif not self._lease.is_complete:
            self._lease.run(leasing.complete)
