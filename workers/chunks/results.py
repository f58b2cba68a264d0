"""The results of a chunk's lines: made as lines end, held briefly, written together. No line fails the others."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Generic

from jobs.accounts.covers import Covered
from jobs.accounts.spill_days import NOTHING_SPENT
from jobs.chunks.recording import NOTHING_WASTED, LineResult, Wasted
from jobs.decisions import Kind
from jobs.errors import ServiceError
from jobs.lines.body_checks import BodyError
from jobs.lines.reading import RawLine, custom_id_of
from workers.chunks.answerer import Ended, L, Unanswered
from workers.chunks.open_chunk import OpenChunk

MAX_HELD_BYTES = 16 * 2**20
"""Size of unwritten results, unless it is a single one: an answer with log-probabilities may have 80 MB."""
MAX_RESULT_BYTES = 256 * 2**20
"""Size of one result: Postgres stores 1 GB, but needs more memory than that to do so."""

log = logging.getLogger(__name__)


class ChunkResults(Generic[L]):
    """Results to be written; `len()` is how many are unwritten."""

    def __init__(self, chunk: OpenChunk[L]) -> None:
        self._chunk = chunk
        self._monotonic = chunk.services.monotonic
        self._batch_id = chunk.claim.batch_id
        self._failures = chunk.lines.failures
        self._unwritten: list[LineResult] = []
        self._num_bytes = 0  # of the unwritten lines
        self._first_at = 0.0  # when the first unwritten result came
        self._wasted, self._spent = NOTHING_WASTED, NOTHING_SPENT  # not written either, as the next two
        self._microseconds = 0
        self._decided: Counter[Kind] = Counter()
        self.num_left = 0
        """Number of lines left for another turn of the chunk."""
        self.away: ServiceError | None = None
        """The error for which a line has no result yet, and may have one elsewhere or later."""

    def __len__(self) -> int:
        return len(self._unwritten)

    def refuse(self, raw: RawLine, error: BodyError) -> None:
        """Record that a line's body cannot be run."""
        self._hold(self._failures.refusal(raw.line_no, custom_id_of(raw.content), error))

    def leave_out(self, line: L, covered: Covered) -> None:
        """Record that a line is not run because a budget of its tenant does not cover it."""
        tokens, picos = self._chunk.submitted.most_of(line)
        shortage = covered.shortage_of(tokens=tokens, picos=picos, currency=self._chunk.settings.currency)
        self._hold(self._failures.uncovered(line.line_no, line.custom_id, shortage=shortage))

    def copy(self, raw: RawLine, original: bytes) -> None:
        """Record the answer of a line that equals one whose line of the output file is `original`."""
        custom_id = custom_id_of(raw.content) or ""
        try:
            self._hold(self._failures.copy(raw.line_no, custom_id, original=original))
        except Exception as error:  # noqa: BLE001 - recorded: it must not fail the other lines, again and again
            self.give_up(raw.line_no, custom_id, error)

    @property
    def are_many(self) -> bool:
        """Tell whether there are too many results to hold more."""
        return len(self._unwritten) >= self._chunk.settings.flush_results or self.are_large

    @property
    def are_large(self) -> bool:
        """Tell whether the results take so much memory that no more may be made."""
        return self._num_bytes >= MAX_HELD_BYTES

    def finish(self, ended: Ended[L]) -> None:
        """Record the result of a line that has ended, or why it has none."""
        line = ended.line
        began_at = self._chunk.submitted.drop(line.line_no)
        try:
            made = self._made(ended, began_at)
            if isinstance(made, LineResult):
                self._hold(self._storable(made, line))
            elif made is Unanswered.LEFT:
                self.num_left += 1
            elif began_at is not None:  # None: all were dropped, and it goes to another worker
                for _, error in self._chunk.submitted.submit([(line, None)]):
                    raise error
        except ServiceError as error:
            self.away = error
        except Exception as error:  # noqa: BLE001 - recorded: it must not fail the other lines, again and again
            self.give_up(line.line_no, line.custom_id, error)

    def _storable(self, result: LineResult, line: L) -> LineResult:
        """Return a result, or a failure in its place if it is too large to store."""
        num_bytes = len(result.line)
        if num_bytes <= MAX_RESULT_BYTES:
            return result
        message = (
            f"this line's answer has {num_bytes:,} bytes; at most {MAX_RESULT_BYTES:,} are stored. It is not billed. "
            "Lower n, max_tokens or the number of log-probabilities, or use more lines"
        )
        return self._failures.failure(line.line_no, line.custom_id, message=message)

    def _made(self, ended: Ended[L], began_at: float | None) -> LineResult | Unanswered:
        """Make a result, and record the events of its line if that has a span."""
        try:
            return ended.make()
        finally:
            traces, parent, line_no = self._chunk.services.traces, self._chunk.lease.trace_context, ended.line.line_no
            if parent is not None and began_at is not None and traces.has_line(self._batch_id, line_no):
                traces.note("line", parent=parent, began_at=began_at, events=ended.events(), line_no=line_no)

    def give_up(self, line_no: int, custom_id: str | None, error: Exception) -> None:
        """Fail one line because of an internal error, and abort what is still computed of it."""
        self._chunk.submitted.drop(line_no)
        log.error("line failed unexpectedly batch_id=%s line_no=%s", self._batch_id, line_no, exc_info=error)
        self._hold(self._failures.fault(line_no, custom_id, error=error))

    @property
    def is_due(self) -> bool:
        """Tell whether to write now: there are many results, the first is old, or no other will come."""
        if not self._unwritten:
            return False
        is_old = self._monotonic() - self._first_at >= self._chunk.settings.flush_seconds
        is_old = is_old or self._chunk.lines.is_room_scarce(self._unwritten[-1].line_no)
        return is_old or self.are_many or not self._chunk.submitted

    def write(self, *, is_last: bool = False) -> None:
        """Write the results, which also extends the lease or, with `is_last`, ends it.

        Raise Abandoned; after Outdone they are still unwritten.
        """
        lines = self._chunk.lines
        self._wasted, self._spent = self._wasted + lines.pop_wasted(), self._spent + lines.pop_spent()
        self._microseconds += lines.pop_microseconds()
        self._decided.update(lines.pop_decisions(is_last=is_last))
        self._chunk.lease.flush(
            self._unwritten,
            most_running=self._chunk.submitted.most_tokens,
            most_picos=self._chunk.submitted.most_picos,
            is_last=is_last,
            worker_microseconds=self._microseconds,
            wasted=self._wasted,
            spent=self._spent,
            decided=self._decided,
        )
        self._wasted, self._spent = NOTHING_WASTED, NOTHING_SPENT
        self._microseconds, self._decided = 0, Counter()
        lines.leave([result.line_no for result in self._unwritten])
        self._unwritten, self._num_bytes = [], 0

    def write_all(self) -> None:
        """Write the results, if there are any, and what was paid without one. Raise as `write`."""
        if self._unwritten or self._wasted or self._spent or self._chunk.lines.has_paid:
            self.write()

    def throw_away(self) -> None:
        """Drop the unwritten results; what a server computed for them was paid in vain."""
        if not self._chunk.lines.engine.is_own:
            self._wasted = sum(map(_waste_of, self._unwritten), start=self._wasted)
        self._unwritten, self._num_bytes = [], 0

    def _hold(self, result: LineResult) -> None:
        if not self._unwritten:
            self._first_at = self._monotonic()
        self._unwritten.append(result)
        self._num_bytes += len(result.line)


def _waste_of(result: LineResult) -> Wasted:
    return Wasted(input_tokens=result.input_tokens, output_tokens=result.output_tokens)
