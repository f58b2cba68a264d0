"""Takes one extraction as far as it goes: begins a stage, waits for its batch, puts the records out at the end.

Each effect is one transaction under the extraction's claim, or one that can be repeated: a worker may be killed at any
moment. Objects that no row names yet are written before, and swept where that was for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import islice
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from extraction.course.job import ExtractJob
from jobs import files
from jobs.batches import lifecycle as batches
from jobs.batches import made_inputs
from jobs.errors import (
    ConflictError,
    FencedOutError,
    InputError,
    LimitError,
    NotFoundError,
    RateLimitError,
    ServiceError,
)
from jobs.extractions import claims, documents, lifecycle, outputs, questions, reviews, stages
from jobs.extractions.claims import ExtractionWork, StoppingError
from jobs.extractions.progress import DocumentProgress, Progress, StageFiles
from jobs.extractions.snapshot import KeptDocument, encoded, kept_documents
from jobs.extractions.stages import STAGES, Stage
from jobs.files import NewFile, Purpose
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState, ExtractionState
from jobs.storage import Storage
from jobs.tables import Batch, Extraction, ExtractionStage, Tenant

log = logging.getLogger(__name__)

_MAX_TRIES = 6
_FIRST_PAUSE = timedelta(seconds=5)  # doubled at each try: two and a half minutes together
_ROOM_PAUSE = timedelta(seconds=30)  # batches end at any time, and each look writes a stage's lines anew
_UNEXPECTED = "an unexpected error; the log of the control workers has it, so tell your operator the extraction's id"
_ROWS_A_LOOK = 1000
_NOTED_AT_ONCE = 500
_ENDED_EARLY = (BatchState.EXPIRED, BatchState.CANCELLED)
"""With an error for every line that was not run: what was answered is put out."""


class ExtractionFailedError(InputError):
    """An extraction cannot go on; the message is its reason."""


@dataclass(frozen=True)
class _Course:
    """An extraction as it was when its worker looked."""

    extraction: Extraction
    begun: list[ExtractionStage]
    batches: dict[str, Batch]
    is_stopped: bool

    @cached_property
    def job(self) -> ExtractJob:
        return lifecycle.stored_plan(self.extraction).job()

    @property
    def next_stage(self) -> Stage | None:
        """Return the stage that has not begun; None: all there are, have."""
        all_of = STAGES if self.extraction.again else STAGES[: STAGES.index(Stage.GROUND) + 1]
        return all_of[len(self.begun)] if len(self.begun) < len(all_of) else None

    @property
    def open_stage(self) -> ExtractionStage | None:
        """Return the stage whose end is not noted."""
        return self.begun[-1] if self.begun and self.begun[-1].done_at is None else None

    @property
    def open_batch(self) -> Batch | None:
        stage = self.open_stage
        return None if stage is None or stage.batch_id is None else self.batches[stage.batch_id]

    @property
    def ended_early(self) -> tuple[ExtractionStage, Batch] | None:
        """Return the first stage whose batch expired or was cancelled: after it nothing more is asked of the model."""
        of_stages = ((stage, self.batches[stage.batch_id]) for stage in self.begun if stage.batch_id is not None)
        return next((found for found in of_stages if found[1].state in _ENDED_EARLY), None)

    @property
    def early_end(self) -> str | None:
        """Return what to say of it."""
        return None if self.ended_early is None else _batch_problem(*self.ended_early)

    @property
    def not_asked(self) -> dict[str, str] | None:
        """Return the error of documents that were read, and not asked for it."""
        if self.ended_early is None or STAGES[self.ended_early[0].number] is not Stage.READ:
            return None
        reason = f"{_batch_problem(*self.ended_early)}, and nothing was asked after it"
        return {"code": f"batch_{self.ended_early[1].state}", "message": reason}


class Extractions:
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
        """`is_stopping` is asked between effects, and now and then within one: then extractions are given up as is."""
        self._sessions = sessions
        self._hold_sessions = hold_sessions
        self._storage = storage
        self._settings = settings
        self._is_stopping = is_stopping

    def advance(self, extraction_id: str) -> bool:
        """Take an extraction as far as it goes now; False where another worker has it."""
        return claims.work_on(
            self._sessions,
            extraction_id,
            self._work,
            settings=self._settings,
            hold_sessions=self._hold_sessions,
            is_stopping=self._is_stopping,
        )

    def _work(self, work: ExtractionWork) -> None:
        try:
            while self._go_on(work):
                pass
        except (LimitError, RateLimitError) as error:
            self._wait_for_room(work, str(error))
        except ServiceError as error:
            self._try_again_later(work, str(error))
        except InputError as error:
            self._fail(work, error.message)
        except (FencedOutError, StoppingError):
            raise
        except Exception:
            # A defect of ours, or of what we read: it counts as a try, or the extraction would be begun anew for ever.
            log.exception("extraction failed to go on extraction_id=%s", work.claim.extraction_id)
            self._try_again_later(work, _UNEXPECTED)

    def _wait_for_room(self, work: ExtractionWork, reason: str) -> None:
        """Note which limit is reached, and look again later, until the extraction's time is over.

        None is resumed once it has failed: what was asked so far would be paid for in vain.
        """
        with work.writing() as (session, extraction):
            lifecycle.note_reason(extraction, reason)
            now = session.scalar(select(func.clock_timestamp()))
            assert now is not None
            if now >= extraction.expires_at:
                self._end_without_records(session, extraction)
                return
            extraction.look_at = now + _ROOM_PAUSE
        log.info("extraction waits for room extraction_id=%s", work.claim.extraction_id)

    def _try_again_later(self, work: ExtractionWork, reason: str) -> None:
        """Note a trouble that may be over soon, or fail the extraction where it has lasted."""
        with work.writing() as (session, extraction):
            extraction.num_tries += 1
            lifecycle.note_reason(extraction, reason)
            if extraction.num_tries >= _MAX_TRIES:
                self._end_without_records(session, extraction)
                return
            pause = _FIRST_PAUSE * 2 ** (extraction.num_tries - 1)
            extraction.look_at = session.scalar(select(func.clock_timestamp() + pause))
        log.warning("extraction waits extraction_id=%s reason=%s", work.claim.extraction_id, reason)

    def _fail(self, work: ExtractionWork, reason: str) -> None:
        with work.writing() as (session, extraction):
            if extraction.state != ExtractionState.CANCELLING:
                lifecycle.note_reason(extraction, reason)
            self._end_without_records(session, extraction)

    def _end_without_records(self, session: Session, extraction: Extraction) -> None:
        is_cancelling = extraction.state == ExtractionState.CANCELLING
        lifecycle.move(session, extraction, ExtractionState.CANCELLED if is_cancelling else ExtractionState.FAILED)

    # --- one thing at a time -----------------------------------------------------------------------------------------

    def _go_on(self, work: ExtractionWork) -> bool:
        """Do the next thing that is to be done; False where there is nothing (yet)."""
        with work.reading() as session:
            course = _look(session, work.claim.extraction_id)
        if ExtractionState(course.extraction.state) not in (ExtractionState.IN_PROGRESS, ExtractionState.CANCELLING):
            return False
        if course.is_stopped:
            self._stop(work, course)
            return False
        if course.open_stage is not None:
            return self._finish_stage(work, course)
        if course.next_stage is None:
            self._complete(work, course)
            return False
        self._begin_stage(work, course, course.next_stage)
        return True

    def _stop(self, work: ExtractionWork, course: _Course) -> None:
        batch = course.open_batch
        with work.writing() as (session, extraction):
            if extraction.state == ExtractionState.IN_PROGRESS:
                lifecycle.stop(session, extraction, reason="its tenant was deleted")
            if batch is not None and BatchState(batch.state) not in TERMINAL_BATCH_STATES:
                with suppress(ConflictError):  # it ends by itself
                    batches.cancel_batch(session, extraction.tenant_id, batch.id)
                return
            lifecycle.move(session, extraction, ExtractionState.CANCELLED)

    def _finish_stage(self, work: ExtractionWork, course: _Course) -> bool:
        batch = course.open_batch
        if batch is not None and BatchState(batch.state) not in TERMINAL_BATCH_STATES:
            return False
        assert course.open_stage is not None, "there is one to finish"
        if batch is not None and batch.state == BatchState.FAILED:
            raise ExtractionFailedError(_batch_problem(course.open_stage, batch))
        if STAGES[course.open_stage.number] is Stage.READ:
            self._note_read(work, course)
        with work.writing() as (session, extraction):
            stage = session.get_one(ExtractionStage, (extraction.id, course.open_stage.number))
            stages.finish(session, stage)
            extraction.num_tries = 0
        return True

    def _complete(self, work: ExtractionWork, course: _Course) -> None:
        made = (one.record() for one in self._progress(work, course))
        records = reviews.noting(work, course.job.schema, made)
        written = outputs.write(self._storage, course.extraction, records, schema=course.job.schema)
        with work.writing() as (session, extraction):
            extraction.output_file_id = files.create_file(session, extraction.tenant_id, written.records).id
            if written.table is not None:
                extraction.parquet_file_id = files.create_file(session, extraction.tenant_id, written.table).id
            extraction.num_done = written.num_done
            extraction.failed_codes = dict(written.codes)
            extraction.num_to_review = written.num_to_review
            lifecycle.note_reason(extraction, course.early_end)
            after = ExtractionState.COMPLETED
            if extraction.state == ExtractionState.CANCELLING:
                after = ExtractionState.CANCELLED
            lifecycle.move(session, extraction, after)

    # --- stages ------------------------------------------------------------------------------------------------------

    def _begin_stage(self, work: ExtractionWork, course: _Course, stage: Stage) -> None:
        kept = self._keep(work, course) if stage is Stage.READ else []
        lines = self._lines(work, course, stage, documents_key=kept[0].object_key if kept else None)
        counted = _Counted(lines)
        object_key = files.new_object_key(course.extraction.tenant_id)
        name = f"{course.extraction.id}_{stage}.jsonl"
        written = made_inputs.write_input(self._storage, object_key, counted, filename=name, settings=self._settings)
        try:
            self._submit(work, stage, kept, written if counted.num_lines else None, num_lines=counted.num_lines)
        except (LimitError, RateLimitError):
            for key in (object_key, *(new.object_key for new in kept)):  # the next look writes them anew
                self._storage.delete(key)
            raise

    def _submit(
        self, work: ExtractionWork, stage: Stage, kept: list[NewFile], lines: NewFile | None, *, num_lines: int
    ) -> None:
        with work.writing() as (session, extraction):
            if extraction.state != ExtractionState.IN_PROGRESS:
                return  # it is cancelled meanwhile, and the next look sees that
            if kept:
                rows = [files.create_file(session, extraction.tenant_id, new) for new in kept]
                extraction.documents_file_id, extraction.plan_file_id = (row.id for row in rows)
            stages.begin(session, extraction, stage, lines, num_lines=num_lines, settings=self._settings)

    def _lines(
        self, work: ExtractionWork, course: _Course, stage: Stage, *, documents_key: str | None
    ) -> Iterable[bytes]:
        if documents_key is not None:
            return (document.read_line(number) for number, document in kept_documents(self._storage, documents_key))
        if stage in (Stage.ASK, Stage.ASK_AGAIN) and course.early_end is not None:
            return ()
        progress, job = self._progress(work, course), course.job
        if stage is Stage.ASK:
            most = self._settings.max_line_bytes
            return questions.first_questions(progress, job, self._storage, max_line_bytes=most)
        if stage is Stage.ASK_AGAIN:
            return questions.second_questions(progress, job)
        plan_key = self._kept_key(work, course.extraction.plan_file_id)
        ground = questions.first_groundings if stage is Stage.GROUND else questions.second_groundings
        return ground(progress, plan_key=plan_key)

    def _keep(self, work: ExtractionWork, course: _Course) -> list[NewFile]:
        """Write the documents of now and the plan as objects that no row names yet."""
        plan = lifecycle.stored_plan(course.extraction).to_bytes()
        contents: list[tuple[str, Iterable[bytes]]] = [
            ("documents.jsonl", encoded(self._documents(work, course.extraction.collection_id))),
            ("plan.json", [plan]),
        ]
        return [self._kept(course.extraction, name, content) for name, content in contents]

    def _kept(self, extraction: Extraction, name: str, content: Iterable[bytes]) -> NewFile:
        object_key = files.new_object_key(extraction.tenant_id)
        return NewFile(
            object_key=object_key,
            filename=f"{extraction.id}_{name}",
            purpose=Purpose.USER_DATA,
            size_bytes=self._storage.put(object_key, content),
            expires_after_seconds=files.MAX_EXPIRY_SECONDS,
        )

    def _documents(self, work: ExtractionWork, collection_id: str) -> Iterator[KeptDocument]:
        after = -1
        while True:
            with work.reading() as session:
                rows = documents.iter_documents(session, collection_id, after=after, limit=_ROWS_A_LOOK)
            if not rows:
                return
            yield from map(KeptDocument.of, rows)
            after = rows[-1].number

    def _note_read(self, work: ExtractionWork, course: _Course) -> None:
        """Note of each document what reading it came to; done again it notes the same."""
        found = ((one.document.id, _as_columns(one)) for one in self._progress(work, course) if one.read is not None)
        while block := list(islice(found, _NOTED_AT_ONCE)):
            with work.writing() as (session, _extraction):
                documents.note_read(session, block)

    def _progress(self, work: ExtractionWork, course: _Course) -> Iterator[DocumentProgress]:
        documents_key = self._kept_key(work, course.extraction.documents_file_id)
        found = {STAGES[stage.number]: self._files_of(work, course, stage) for stage in course.begun}
        progress = Progress(
            self._storage, documents_key, found, num_groups=len(course.job.groups), not_asked=course.not_asked
        )
        for one in progress.documents():
            work.check()
            yield one

    def _files_of(self, work: ExtractionWork, course: _Course, stage: ExtractionStage) -> StageFiles:
        if stage.batch_id is None:
            return StageFiles()
        batch = course.batches[stage.batch_id]
        keys = [
            None if file_id is None else self._kept_key(work, file_id)
            for file_id in (batch.output_file_id, batch.error_file_id)
        ]
        return StageFiles(output_key=keys[0], errors_key=keys[1])

    def _kept_key(self, work: ExtractionWork, file_id: str | None) -> str:
        """Return the object of a file. Raises ExtractionFailedError where it was deleted."""
        assert file_id is not None, "its stage is done"
        with work.reading() as session:
            extraction = session.get_one(Extraction, work.claim.extraction_id)
            file = files.find_kept(session, extraction.tenant_id, file_id)
        if file is None:
            raise ExtractionFailedError(
                f"the file {file_id!r} of this extraction was deleted or has expired; create the extraction anew"
            )
        return file.object_key


class _Counted:
    """Lines, counted as they pass."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.num_lines = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.num_lines += 1
            yield line


def _look(session: Session, extraction_id: str) -> _Course:
    extraction = session.get(Extraction, extraction_id)
    if extraction is None:
        raise NotFoundError(f"extraction {extraction_id!r} is gone")
    begun = stages.stages_of(session, extraction_id)
    is_gone = session.get_one(Tenant, extraction.tenant_id).deleted_at is not None
    return _Course(
        extraction=extraction,
        begun=begun,
        batches=stages.batches_of(session, begun),
        is_stopped=extraction.state == ExtractionState.CANCELLING or is_gone,
    )


def _as_columns(one: DocumentProgress) -> dict[str, Any]:
    assert one.read is not None, "it was read, or tried to be"
    names = ("sha256", "object_key", "num_pages", "num_characters")
    if one.read.error is not None:
        error = one.read.error
        # Which may name what strangers wrote in a document.
        return dict.fromkeys(names) | {"error": {**error, "message": lifecycle.storable(error["message"])}}
    return {name: one.read.body[name] for name in names} | {"error": None}


def _batch_problem(stage: ExtractionStage, batch: Batch) -> str:
    said = (batch.errors or [{}])[0].get("message", "")
    because = f": {said}" if said else ""
    return f"batch {batch.id!r} of stage {STAGES[stage.number]} is {batch.state}{because}"
