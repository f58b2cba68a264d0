"""Runs one claimed chunk of documents from first line to last: has them read, writes results, holds the lease."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from jobs.accounts.prices import Prices, reading_price_picos
from jobs.chunks import leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.reading_room import put_off_if_used_up
from jobs.chunks.recording import LineResult
from jobs.errors import InputError, ServiceError
from jobs.lines.document_bodies import CutRequest, GroundRequest, ReadRequest
from jobs.lines.endpoints import Request, parse_request
from jobs.lines.line_times import TURN_MILLISECONDS
from jobs.lines.passage_bodies import FindRequest
from jobs.lines.reading import RawLine, custom_id_of, parse_line
from jobs.telemetry.declared import DOCUMENTS
from workers.chunks.ends import ChunkEnds
from workers.chunks.held import HeldChunk, Services
from workers.chunks.lease import RETRY_SECONDS, Abandoned
from workers.preparing import results
from workers.preparing.documents import DocumentAnswers
from workers.preparing.lines import DocumentLines, Ended
from workers.preparing.passages import PassageAnswers
from workers.preparing.readers import ReaderPool, Readers
from workers.preparing.results import DocumentResults

TURN_MICROSECONDS = 1000 * TURN_MILLISECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareParts(Services):
    """Readers of documents, what they are asked, and the services around them."""

    pool: ReaderPool
    answers: DocumentAnswers
    passages: PassageAnswers


class DocumentRun(HeldChunk):
    """One claim.

    Its lines are not noted as begun: what they hold can end a reader, which is that line's error, and never the worker.
    So however often workers are killed, that is held against no document.
    """

    def __init__(self, claim: ClaimedChunk, parts: PrepareParts) -> None:
        claim = replace(claim, prices=Prices(reading_picos=reading_price_picos(parts.settings)))
        super().__init__(claim, parts)
        self._parts = parts
        self._lines = DocumentLines(parts.pool, self._answer, tenant_id=claim.tenant_id, batch_id=claim.batch_id)
        self._results = DocumentResults(self._lease, parts.settings, monotonic=parts.monotonic)
        self._ends: ChunkEnds[Ended] = ChunkEnds(
            lease=self._lease,
            lines=self._lines,
            results=self._results,
            settings=parts.settings,
            drain=parts.drain,
            is_wedged=lambda: False,  # a reader that takes too long is ended, and its line fails
            monotonic=parts.monotonic,
        )

    def _work_off(self) -> None:
        self._put_off_if_used_up()
        content = self._ends.read_content(self._claim, self._parts.storage)
        done = self._lease.run(leasing.lines_done)
        try:
            for line in self._claim.split(content):
                if line.line_no not in done:
                    self._lines.start(line)
            self._collect()
        finally:
            self._lines.drop_all()

    def _put_off_if_used_up(self) -> None:
        seconds = self._parts.settings.tenant_reading_seconds_per_day
        if self._lease.run(partial(put_off_if_used_up, default_seconds=seconds)):
            raise Abandoned("its tenant has had all the reading of the day")

    def _collect(self) -> None:
        """Until every line has its result: write results when due, hold the lease."""
        while self._lines or self._results:
            for ended in self._lines.wait_finished(self._parts.settings.flush_seconds):
                self._results.finish(ended)
            self._give_back_if_away()
            if self._results.reading_microseconds >= TURN_MICROSECONDS:
                self._lines.hold_back()
            if self._results and (self._results.is_due or not self._lines):
                self._results.write(is_last=not self._lines and not self._lines.num_held_back)
                self._ends.end_if_unwanted()
            self._ends.hold_lease_if_due()
            if self._lines:
                self._ends.give_back_if_drained()

    def _close(self) -> None:
        """End the chunk, or its turn: its other lines are expected to take as long as these did."""
        num_left = self._lines.num_held_back
        if not num_left:
            super()._close()
            return
        milliseconds = self._results.reading_microseconds * num_left // (1000 * self._results.num_ended)
        self._lease.run(lambda session, claim: leasing.end_turn(session, claim, estimated_tokens=milliseconds))

    def _give_back_if_away(self) -> None:
        """Return the rest where a store did not answer: it is no fault of the documents."""
        away = self._results.away
        if away is None:
            return
        self._lines.drop_all()
        if self._results:
            self._results.write()
            self._ends.end_if_unwanted()
        time.sleep(RETRY_SECONDS)
        self._lease.run(leasing.release)
        raise Abandoned(str(away))

    def _answer(self, raw: RawLine, readers: Readers) -> LineResult:
        """Answer a line, in a thread of the pool; whatever ends it ends no other. Raises ServiceError."""
        assert raw.content is not None, "validation refused over-long lines"
        batch_id, custom_id = self._claim.batch_id, custom_id_of(raw.content)
        clock = _Clock(readers)
        try:
            line = parse_line(raw.content, line_no=raw.line_no, endpoint=self._claim.endpoint)
            request = parse_request(self._claim.endpoint, line.body)
            body = self._body_of(request, readers)
            found, outcome = results.answered(batch_id, raw.line_no, line.custom_id, body), "answered"
            found = replace(found, reading_microseconds=clock.microseconds)
        except ServiceError:
            raise
        except InputError as error:
            found, outcome = results.refused(batch_id, raw.line_no, custom_id, error), error.code
            found = replace(found, reading_microseconds=clock.microseconds)
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            # Nobody is charged for its time.
            found, outcome = results.fault(batch_id, raw.line_no, custom_id, error), "fault"
        self._parts.meters.count(DOCUMENTS, self._claim.endpoint.rpartition("/")[2], outcome)
        return found

    def _body_of(self, request: Request, readers: Readers) -> dict[str, Any]:
        tenant_id = self._claim.tenant_id
        if isinstance(request, FindRequest):
            return self._parts.passages.answer(request, tenant_id=tenant_id)
        assert isinstance(request, ReadRequest | GroundRequest | CutRequest), "the queue has no others"
        return self._parts.answers.answer(request, tenant_id=tenant_id, readers=readers)


class _Clock:
    """How long a line takes: the processor time of its reader's processes, and of this thread."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._began = self._seconds

    @property
    def microseconds(self) -> int:
        return round((self._seconds - self._began) * 1e6)

    @property
    def _seconds(self) -> float:
        return self._readers.seconds + time.thread_time()
