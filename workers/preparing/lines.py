"""The lines of one chunk that document readers answer, in turns of a few seconds."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy.orm import Session

from jobs.accounts.prices import Prices, reading_price_picos
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.reading_room import put_off_if_used_up
from jobs.chunks.recording import LineResult
from jobs.errors import InputError, ServiceError
from jobs.lines.document_bodies import CutRequest, GroundRequest, ReadRequest
from jobs.lines.endpoints import parse_request
from jobs.lines.line_times import TURN_MILLISECONDS
from jobs.lines.passage_bodies import FindRequest
from jobs.lines.reading import RawLine, custom_id_of, parse_line
from workers.chunks.answerer import ChunkLines, Ended, Output, Room, Unanswered
from workers.chunks.line_results import FailureMaker
from workers.chunks.services import Services
from workers.preparing import results
from workers.preparing.documents import DocumentAnswers
from workers.preparing.meters import DOCUMENTS
from workers.preparing.passages import PassageAnswers
from workers.preparing.readers import ReaderPool, Readers

TURN_MICROSECONDS = 1000 * TURN_MILLISECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareParts:
    """The document readers, the answers made with them, and the services around them."""

    services: Services
    pool: ReaderPool
    answers: DocumentAnswers
    passages: PassageAnswers


@dataclass(frozen=True, slots=True)
class DocumentLine:
    """An unparsed line: the thread that answers it parses it. It uses no tokens."""

    raw: RawLine
    num_prompt_tokens: int = 0
    most_tokens: int = 0

    @property
    def line_no(self) -> int:
        return self.raw.line_no

    @property
    def custom_id(self) -> str:
        return custom_id_of(self.raw.content) or ""


OnEnd = Callable[[Ended[DocumentLine]], None]


class DocumentLines(ChunkLines[DocumentLine]):
    """Passes lines to the pool, as many at once as it has threads."""

    long_line_bytes = math.inf
    may_put_off = True

    def __init__(self, claim: ClaimedChunk, parts: PrepareParts) -> None:
        prices = Prices(reading_picos=reading_price_picos(parts.services.settings))
        super().__init__(replace(claim, prices=prices), FailureMaker(claim.batch_id, code="worker_failure"))
        self._parts = parts
        self._open: set[int] = set()  # numbers of the lines that are still wanted
        self._waiting: deque[tuple[DocumentLine, OnEnd]] = deque()
        self._num_running = 0
        self._is_turn_over = False
        self._num_answered = 0
        self._microseconds = 0  # of the answered lines

    def put_off(self, session: Session, claim: ClaimedChunk) -> str | None:
        """Put a chunk off if its tenant has used up its reading time of the day."""
        seconds = self._parts.services.settings.tenant_reading_seconds_per_day
        is_put_off = put_off_if_used_up(session, claim, default_seconds=seconds)
        return "its tenant has used up its reading time of the day" if is_put_off else None

    def begin(self, session: Session, claim: ClaimedChunk) -> None:
        """Record nothing: a document can kill a reader, which is an error of its line, but never the worker.

        So no document is blamed for a killed worker.
        """

    def prepare(self, raw: RawLine, *, is_wanted: Callable[[], bool], room: Room) -> DocumentLine:
        return DocumentLine(raw)

    def submit(self, lines: Sequence[tuple[DocumentLine, Output | None]], on_end: OnEnd) -> Mapping[int, Exception]:
        for line, _ in lines:
            self._open.add(line.line_no)
            self._waiting.append((line, on_end))
        self._fill()
        return {}

    def drop(self, line_no: int) -> None:
        self._open.discard(line_no)

    def drop_all(self) -> Mapping[int, Output]:
        """Drop every line: documents that are being read are read to their end, and the results are discarded."""
        self._open.clear()
        self._waiting.clear()
        return {}

    def estimate_left(self, num_left: int) -> int:
        """Return the expected milliseconds of the remaining lines, from the average of the answered ones."""
        return self._microseconds * num_left // (1000 * self._num_answered)

    def _fill(self) -> None:
        while self._waiting and self._num_running < self._parts.pool.num_threads:
            self._num_running += 1
            work = partial(self._run, *self._waiting.popleft())
            self._parts.pool.submit(work, tenant_id=self.claim.tenant_id)

    def _run(self, line: DocumentLine, on_end: OnEnd, readers: Readers) -> None:
        """Answer a line in a thread of the pool; an error in it ends no other line."""
        if line.line_no not in self._open:
            return
        outcome: LineResult | Unanswered | Exception = Unanswered.LEFT
        if not self._is_turn_over:
            try:
                with self._parts.pool.running.including(self.claim.batch_id, 1):
                    outcome = self._answer(line.raw, readers)
            except Exception as error:  # noqa: BLE001 - passed to the chunk, which records it
                outcome = error
        on_end(Ended(line=line, make=partial(self._made, outcome)))

    def _made(self, outcome: LineResult | Unanswered | Exception) -> LineResult | Unanswered:
        """Return the outcome of a line and start another one, unless the chunk's turn is over."""
        self._num_running -= 1
        if isinstance(outcome, LineResult):
            self._num_answered += 1
            self._microseconds += outcome.reading_microseconds
            if self._microseconds >= TURN_MICROSECONDS:
                self._end_turn()
        self._fill()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _end_turn(self) -> None:
        """Start no further line: lines that no reader has started are left for another turn."""
        self._is_turn_over = True
        for line, on_end in self._waiting:
            on_end(Ended.by(line, Unanswered.LEFT))
        self._waiting.clear()

    def _answer(self, raw: RawLine, readers: Readers) -> LineResult:
        batch_id, kind = self.claim.batch_id, self.claim.endpoint.rpartition("/")[2]
        count, clock = self._parts.services.meters.count, _Clock(readers)
        try:
            result, outcome = self._answered(raw, readers), "answered"
        except ServiceError:
            raise
        except InputError as error:
            result, outcome = results.refused(batch_id, raw.line_no, custom_id_of(raw.content), error), error.code
        except Exception:
            count(DOCUMENTS, kind, "fault")  # its time is not billed
            raise
        count(DOCUMENTS, kind, outcome)
        return replace(result, reading_microseconds=clock.microseconds)

    def _answered(self, raw: RawLine, readers: Readers) -> LineResult:
        assert raw.content is not None, "validation refused over-long lines"
        tenant_id = self.claim.tenant_id
        line = parse_line(raw.content, line_no=raw.line_no, endpoint=self.claim.endpoint)
        request = parse_request(self.claim.endpoint, line.body)
        if isinstance(request, FindRequest):
            body = self._parts.passages.answer(request, tenant_id=tenant_id)
        else:
            assert isinstance(request, ReadRequest | GroundRequest | CutRequest), "the queue has no others"
            body = self._parts.answers.answer(request, tenant_id=tenant_id, readers=readers)
        return results.answered(self.claim.batch_id, raw.line_no, line.custom_id, body)


class _Clock:
    """The time of a line: the processor time of its reader's processes and of this thread."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._began = self._seconds

    @property
    def microseconds(self) -> int:
        return round((self._seconds - self._began) * 1e6)

    @property
    def _seconds(self) -> float:
        return self._readers.seconds + time.thread_time()
