"""Feeds the lines of a claimed chunk that have no result to their answerer, each from its kept output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Generic

from sqlalchemy.orm import Session

from jobs.chunks import checkpoints, leasing, originals
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.originals import Original
from jobs.lines.body_checks import BodyError
from jobs.lines.output_lines import answer_of
from jobs.lines.reading import RawLine, custom_id_of
from workers.chunks.answerer import L, Output
from workers.chunks.copies import ChunkCopies
from workers.chunks.ends import ChunkEnds
from workers.chunks.lease import Abandoned
from workers.chunks.open_chunk import OpenChunk
from workers.chunks.results import ChunkResults
from workers.chunks.starter import LineStarter

PATIENCE_SECONDS = 10.0
"""How long copies wait in total for lines of other chunks: an answer may take hours, while the slot is idle."""

_ORIGINALS_AT_ONCE = 16
"""Answers read at once: each may be large."""


class ChunkFeeder(Generic[L]):
    """Reads lines, prepares them and passes them on; a line that cannot be run gets its result at once."""

    def __init__(
        self,
        chunk: OpenChunk[L],
        *,
        starter: LineStarter[L],
        results: ChunkResults[L],
        ends: ChunkEnds,
        copies: ChunkCopies,
    ) -> None:
        self._services = chunk.services
        self._claim = chunk.claim
        self._lease = chunk.lease
        self._lines = chunk.lines
        self._starter = starter
        self._results = results
        self._ends = ends
        self._copies = copies
        self._waits_since: float | None = None

    def feed(self) -> None:
        """Pass on every line except the copies of others, while holding the lease. Raise Abandoned."""
        if self._lines.may_put_off and (reason := self._lease.run(self._lines.put_off)) is not None:
            raise Abandoned(reason)
        content = self._ends.read_content(self._claim, self._services.storage)
        done, kept = self._lease.run(self._begin)
        for raw in self._claim.split(content):
            if raw.line_no not in done and (raw.line_no in kept or not self._copies.hold(raw)):
                self._feed_line(raw, kept.get(raw.line_no))
            self._go_on()
        self._starter.start()

    def feed_copies(self) -> None:
        """Answer copies whose originals are answered, run copies of originals that will not be, or wait a moment.

        A line that another chunk runs mostly ends sooner than one that starts now, so copies wait for it, with a limit.
        An original never waits for a copy, so chunks cannot deadlock. Raise Abandoned.
        """
        num_held, line_nos = len(self._copies), self._copies.originals()
        for start in range(0, len(line_nos), _ORIGINALS_AT_ONCE):
            some = line_nos[start : start + _ORIGINALS_AT_ONCE]
            for original in self._lease.run(partial(originals.find, line_nos=some)):
                self._feed_copies_of(original)
        if len(self._copies) == num_held:
            self._waits_since = self._services.monotonic() if self._waits_since is None else self._waits_since
            time.sleep(self._services.settings.flush_seconds)
        self._go_on()
        self._starter.start()

    def _feed_copies_of(self, original: Original) -> None:
        if original.answer is not None and not self._lines.engine.may_share(answer_of(original.answer)[1]):
            self._feed_all(self._copies.pop_unanswered(original.line_no))
        elif original.answer is not None:
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
        return since is not None and self._services.monotonic() - since >= PATIENCE_SECONDS

    def _go_on(self) -> bool:
        """Do what must not wait for the next line, whose grammar may be waiting for its turn. Raise Abandoned."""
        self._starter.start_if_due()
        self._ends.hold_lease_if_due()
        self._ends.give_back_if_drained()
        return True

    def _begin(self, session: Session, claim: ClaimedChunk) -> tuple[set[int], Mapping[int, Output]]:
        """Begin the chunk; return the lines that have a result, and the kept output of others.

        Called before any line is processed, so that a line that kills the worker can be told from the others.
        """
        self._lines.begin(session, claim)
        fingerprint = self._lines.fingerprint
        kept = {} if fingerprint is None else checkpoints.read(session, claim, model_fingerprint=fingerprint)
        return leasing.lines_done(session, claim), kept

    def _feed_line(self, raw: RawLine, output: Output | None) -> None:
        assert raw.content is not None, "validation refused over-long lines"
        try:
            line = self._prepare(raw, size_bytes=len(raw.content))
        except Abandoned:
            raise
        except BodyError as error:
            self._results.refuse(raw, error)
        except Exception as error:  # noqa: BLE001 - recorded: it must not fail the other lines, again and again
            self._results.give_up(raw.line_no, custom_id_of(raw.content), error)
        else:
            self._starter.add(line, output)

    def _prepare(self, raw: RawLine, *, size_bytes: int) -> L:
        """Prepare a line, a long one in another thread; its grammar may wait for its tenant's turn."""
        if size_bytes < self._lines.long_line_bytes:
            return self._lines.prepare(raw, is_wanted=self._go_on, room=nullcontext)
        self._starter.start()  # the other lines do not wait for it
        return self._ends.hold_lease_during(partial(self._prepare_in_room, raw, size_bytes))

    def _prepare_in_room(self, raw: RawLine, size_bytes: int, is_wanted: Callable[[], bool]) -> L:
        room = partial(self._services.room.inside, size_bytes, is_wanted=is_wanted)
        return self._lines.prepare(raw, is_wanted=is_wanted, room=room)
