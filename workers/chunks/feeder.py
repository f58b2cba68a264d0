"""Feeds the lines of a claimed chunk to the engine: those that have no result yet, each from where it was left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from sqlalchemy.orm import Session

from engine.errors import InvalidParamsError
from jobs.chunks import checkpoints, leasing, originals
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.originals import Original
from jobs.lines import reading
from jobs.lines.body_checks import BodyError
from jobs.lines.reading import InputLine, RawLine
from workers.chunks.copies import ChunkCopies
from workers.chunks.ends import ChunkEnds
from workers.chunks.lease import Abandoned, ChunkLease
from workers.chunks.parts import WorkerParts
from workers.chunks.results import ChunkResults
from workers.chunks.starter import LineStarter
from workers.line_run import LineRun
from workers.prompts import PreparedLine

LONG_LINE_BYTES = 64 * 1024
"""From here on a line is prepared beside the thread that holds the lease, and where there is room for it: a context of
100,000 tokens takes seconds to tokenise. A shorter line is not worth another thread."""

PATIENCE_SECONDS = 10.0
"""For how long copies wait in all for what other chunks run: an answer may take hours, and the slot stands idle."""

_ORIGINALS_AT_ONCE = 16
"""Answers that are read together: each may be large."""


class ChunkFeeder:
    """Reads, parses and prepares lines, and hands them on; one that cannot be run has its result at once."""

    def __init__(
        self,
        claim: ClaimedChunk,
        parts: WorkerParts,
        *,
        lease: ChunkLease,
        starter: LineStarter,
        results: ChunkResults,
        ends: ChunkEnds[LineRun],
        copies: ChunkCopies,
    ) -> None:
        self._claim = claim
        self._parts = parts
        self._lease = lease
        self._starter = starter
        self._results = results
        self._ends = ends
        self._copies = copies
        self._waits_since: float | None = None

    def feed(self) -> None:
        """Hand over every line but the copies of others, holding the lease on the way. Raises Abandoned."""
        content = self._ends.read_content(self._claim, self._parts.storage)
        done, kept = self._lease.run(self._start)
        for raw in self._claim.split(content):
            if raw.line_no not in done and (raw.line_no in kept or not self._copies.hold(raw)):
                self._feed_line(raw, kept.get(raw.line_no))
            self._go_on()
        self._starter.start()

    def feed_copies(self) -> None:
        """Answer copies whose originals are answered by now, run some of those that never will be, or wait a moment.

        What another chunk runs mostly comes sooner than what starts now, so it is waited for, but not for ever. An
        original never waits for a copy, so chunks cannot wait for each other. Raises Abandoned.
        """
        num_held, line_nos = len(self._copies), self._copies.originals()
        for start in range(0, len(line_nos), _ORIGINALS_AT_ONCE):
            some = line_nos[start : start + _ORIGINALS_AT_ONCE]
            for original in self._lease.run(partial(originals.find, line_nos=some)):
                self._feed_copies_of(original)
        if len(self._copies) == num_held:
            self._waits_since = self._parts.monotonic() if self._waits_since is None else self._waits_since
            time.sleep(self._parts.settings.flush_seconds)
        self._go_on()
        self._starter.start()

    def _feed_copies_of(self, original: Original) -> None:
        if original.answer is not None:
            for raw in self._copies.pop_all(original.line_no):
                self._results.copy(raw, original.answer)
                if self._results.are_many:
                    self._results.write()
                    self._ends.end_if_unwanted()
        elif original.is_too_long:
            self._feed_all(self._copies.pop_all(original.line_no))
        elif not original.is_awaited or self._is_impatient():
            self._feed_all(self._copies.pop_unanswered(original.line_no))

    def _feed_all(self, raws: Iterable[RawLine]) -> None:
        for raw in raws:
            self._feed_line(raw, None)
            self._go_on()

    def _is_impatient(self) -> bool:
        since = self._waits_since
        return since is not None and self._parts.monotonic() - since >= PATIENCE_SECONDS

    def _go_on(self) -> bool:
        """Do what must not wait for the next line, such as one whose grammar waits for its turn. Raises Abandoned."""
        self._starter.start_if_due()
        self._ends.hold_lease_if_due()
        self._ends.give_back_if_drained()
        return True

    def _start(self, session: Session, claim: ClaimedChunk) -> tuple[set[int], dict[int, list[int]]]:
        """Return the lines that have a result, and the output that others of them have so far."""
        leasing.start(session, claim)
        kept = checkpoints.read(session, claim, model_fingerprint=self._parts.model_fingerprint)
        return leasing.lines_done(session, claim), kept

    def _feed_line(self, raw: RawLine, output: list[int] | None) -> None:
        assert raw.content is not None, "validation refused over-long lines"
        try:
            claim = self._claim
            line = reading.parse_line(
                raw.content, line_no=raw.line_no, endpoint=claim.endpoint, is_filled=claim.is_filled
            )
        except Exception as error:  # noqa: BLE001 - as below
            self._results.give_up(raw.line_no, reading.custom_id_of(raw.content), error)
            return
        try:
            self._start_or_refuse(line, output, size_bytes=len(raw.content))
        except Abandoned:
            raise
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self._results.give_up(raw.line_no, line.custom_id, error)

    def _start_or_refuse(self, line: InputLine, output: list[int] | None, *, size_bytes: int) -> None:
        try:
            prepared = self._prepare(line, size_bytes=size_bytes)
        except (BodyError, InvalidParamsError) as error:
            self._results.refuse(line, error)
        else:
            self._starter.add(prepared, output)

    def _prepare(self, line: InputLine, *, size_bytes: int) -> PreparedLine:
        """Prepare a line, a long one beside the lease; its grammar may wait for its tenant's turn."""

        def prepare(
            is_wanted: Callable[[], bool] = self._go_on, room: Callable[[], AbstractContextManager[None]] = nullcontext
        ) -> PreparedLine:
            return self._parts.prompts.prepare(
                line,
                endpoint=self._claim.endpoint,
                batch_id=self._claim.batch_id,
                tenant=self._claim.tenant_id,
                is_wanted=is_wanted,
                room=room,
            )

        if size_bytes < LONG_LINE_BYTES:
            return prepare()
        self._starter.start()  # the others do not wait for it
        return self._ends.hold_lease_during(
            lambda is_wanted: prepare(is_wanted, lambda: self._parts.room.inside(size_bytes, is_wanted=is_wanted))
        )
