"""Takes one extraction as far as it goes: begins a stage, waits for its batch, puts the records out at the end.

Objects that no row names yet are written before, and swept where that was for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import chain, islice
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from jobs import files
from jobs.batches import made_inputs
from jobs.errors import LimitError, RateLimitError
from jobs.extractions import documents, lifecycle, outputs, reviews, stages
from jobs.extractions.claims import EXTRACTIONS, ExtractionWork
from jobs.extractions.progress import DocumentProgress
from jobs.extractions.stage_lines import ExtractionFailedError, StageLines
from jobs.extractions.stages import Stage, stage_of
from jobs.extractions.standing import Standing, look, problem_of
from jobs.files import NewFile
from jobs.graphs.advancing import Advancer
from jobs.graphs.reasons import note_reason, storable
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState, ExtractionState
from jobs.storage import Storage
from jobs.tables import Extraction, ExtractionStage, File

log = logging.getLogger(__name__)

_ROOM_PAUSE = timedelta(seconds=30)  # batches end at any time, and each look writes a stage's lines anew
_NOTED_AT_ONCE = 500


class Extractions(Advancer[Extraction]):
    """What a control worker does with extractions."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(EXTRACTIONS, sessions, settings, hold_sessions=hold_sessions, is_stopping=is_stopping)
        self._storage = storage

    def _cancel(self, session: Session, graph: Extraction, *, reason: str) -> None:
        lifecycle.stop(session, graph, reason=reason)

    def _end(self, session: Session, graph: Extraction, *, is_cancelled: bool) -> None:
        lifecycle.move(session, graph, ExtractionState.CANCELLED if is_cancelled else ExtractionState.FAILED)

    def _wait_for_room(self, work: ExtractionWork, reason: str) -> None:
        """Note which limit is reached, and look again later, until the extraction's time is over.

        None is resumed once it has failed: what was asked so far would be paid for in vain.
        """
        with work.writing() as (session, extraction):
            note_reason(extraction, reason)
            now = session.scalar(select(func.clock_timestamp()))
            assert now is not None
            if now >= extraction.expires_at:
                self._end_early(session, extraction)
                return
            extraction.look_at = now + _ROOM_PAUSE
        log.info("extraction waits for room id=%s", work.claim.id)

    def _go_on(self, work: ExtractionWork) -> bool:
        with work.reading() as session:
            standing = look(session, work.claim.id)
        if ExtractionState(standing.extraction.state) not in (ExtractionState.IN_PROGRESS, ExtractionState.CANCELLING):
            return False
        if standing.is_stopped:
            self._stop(work, standing.open_batch)
            return False
        if standing.open_stage is not None:
            return self._finish_stage(work, standing, standing.open_stage)
        if any(self._begin_stage(work, standing, stage) for stage in standing.next_stages):
            return True
        self._complete(work, standing)
        return False

    # --- a stage -----------------------------------------------------------------------------------------------------

    def _begin_stage(self, work: ExtractionWork, standing: Standing, stage: Stage) -> bool:
        """Begin a stage; tell whether it is one: a further round with nothing to ask is none."""
        made = self._lines_of(work, standing)
        kept = made.keep(stage)
        documents_key = kept["documents_file_id"].object_key if stage is Stage.READ else None
        counted = _Counted(made.lines(stage, documents_key=documents_key))
        is_further_round = stage in map(stage_of, standing.begun)
        if is_further_round and counted.is_empty():
            return False
        object_key = files.new_object_key(standing.extraction.tenant_id)
        name = f"{standing.extraction.id}_{stage}.jsonl"
        written = made_inputs.write_input(self._storage, object_key, counted, filename=name, settings=self._settings)
        if stage in (Stage.ASK_AGAIN, Stage.ASK_COVERED) and counted.num_lines and not is_further_round:
            provisional = (one.provisional_record() for one in self._lines_of(work, standing).progress())
            kept = {"output_file_id": outputs.write_provisional(self._storage, standing.extraction, provisional)}
        try:
            self._submit(work, stage, kept, written if counted.num_lines else None, num_lines=counted.num_lines)
        except (LimitError, RateLimitError):
            for key in (object_key, *(new.object_key for new in kept.values())):  # the next look writes them anew
                self._storage.delete(key)
            raise
        return True

    def _submit(
        self, work: ExtractionWork, stage: Stage, kept: dict[str, NewFile], lines: NewFile | None, *, num_lines: int
    ) -> None:
        with work.writing() as (session, extraction):
            if extraction.state != ExtractionState.IN_PROGRESS:
                return  # it is cancelled meanwhile, and the next look sees that
            for column, new in kept.items():
                _delete_kept(session, extraction, column)
                setattr(extraction, column, files.create_file(session, extraction.tenant_id, new).id)
            stages.begin(session, extraction, stage, lines, num_lines=num_lines, settings=self._settings)

    def _finish_stage(self, work: ExtractionWork, standing: Standing, open_stage: ExtractionStage) -> bool:
        batch = standing.open_batch
        if batch is not None and BatchState(batch.state) not in TERMINAL_BATCH_STATES:
            return False
        if batch is not None and batch.state == BatchState.FAILED:
            raise ExtractionFailedError(problem_of(open_stage, batch))
        if stage_of(open_stage) is Stage.READ and batch is not None:
            self._note_read(work, standing)
        with work.writing() as (session, extraction):
            stage = session.get_one(ExtractionStage, (extraction.id, open_stage.number))
            stages.finish(session, stage)
            extraction.num_tries = 0
        return True

    def _note_read(self, work: ExtractionWork, standing: Standing) -> None:
        """Note of each document what reading it came to; done again it notes the same."""
        progress = self._lines_of(work, standing).progress()
        found = ((one.document.id, as_columns(one)) for one in progress if one.read is not None)
        while block := list(islice(found, _NOTED_AT_ONCE)):
            with work.writing() as (session, _extraction):
                documents.note_read(session, block)

    def _lines_of(self, work: ExtractionWork, standing: Standing) -> StageLines:
        return StageLines(work, standing, self._storage, self._settings)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _complete(self, work: ExtractionWork, standing: Standing) -> None:
        schema = standing.job.schema
        made = (one.record() for one in self._lines_of(work, standing).progress())
        records = reviews.noting(work, schema, made)
        written = outputs.write(self._storage, standing.extraction, records, schema=schema)
        with work.writing() as (session, extraction):
            _delete_kept(session, extraction, "output_file_id")
            extraction.output_file_id = files.create_file(session, extraction.tenant_id, written.records).id
            if written.table is not None:
                extraction.parquet_file_id = files.create_file(session, extraction.tenant_id, written.table).id
            extraction.num_done = written.num_done
            extraction.failed_codes = dict(written.codes)
            extraction.num_to_review = written.num_to_review
            note_reason(extraction, standing.early_end)
            after = ExtractionState.COMPLETED
            if extraction.state == ExtractionState.CANCELLING:
                after = ExtractionState.CANCELLED
            lifecycle.move(session, extraction, after)


class _Counted:
    """Lines, counted as they pass."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = iter(lines)
        self.num_lines = 0

    def is_empty(self) -> bool:
        """Tell whether there is no line, before any has passed."""
        first = list(islice(self._lines, 1))
        self._lines = chain(first, self._lines)
        return not first

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.num_lines += 1
            yield line


def _delete_kept(session: Session, extraction: Extraction, column: str) -> None:
    """Delete the file that another takes the place of, where there is one that its owner has not deleted."""
    of_it = (File.id == getattr(extraction, column)) & File.deleted_at.is_(None)
    files.mark_deleted(session, session.scalars(select(File).where(of_it).with_for_update()).all(), by=extraction.id)


def as_columns(one: DocumentProgress) -> dict[str, Any]:
    """Return what the row of a document is to say of reading it."""
    assert one.read is not None, "it was read, or tried to be"
    names = ("sha256", "object_key", "num_pages", "num_characters")
    if one.read.error is not None:
        error = one.read.error
        # Which may name what strangers wrote in a document.
        return dict.fromkeys(names) | {"error": {**error, "message": storable(error["message"])}}
    return {name: one.read.body[name] for name in names} | {"error": None}
