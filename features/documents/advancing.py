"""Advances one extraction: begins a stage, waits for its batch, and at the end writes the records.

Objects are written before a row names them, and swept if none ever does.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from features.documents import lifecycle, outputs, record_ranges, stages
from features.documents.claims import EXTRACTIONS, ExtractionWork
from features.documents.collections.read_notes import note_read
from features.documents.reviewing import reviews
from features.documents.stage_lines import ExtractionFailedError, StageLines
from features.documents.stages import DocumentStage, stage_of
from features.documents.standing import Standing, look, problem_of
from features.documents.states import ExtractionState
from features.documents.tables import Extraction, ExtractionStage
from jobs import files
from jobs.batches import made_inputs
from jobs.batches.validation import EmbedderOf, no_embedder
from jobs.courses import stages as course_stages
from jobs.courses.advancing import CourseAdvancer
from jobs.courses.counted_lines import CountedLines
from jobs.errors import InputError, LimitError, OverBudgetError, RateLimitError, TooLargeError
from jobs.files import NewFile
from jobs.graphs.reasons import note_reason
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import File

_ASKING_AGAIN = (DocumentStage.ASK_AGAIN, DocumentStage.ASK_COVERED)
_DISPENSABLE = (*_ASKING_AGAIN, DocumentStage.GROUND_AGAIN, DocumentStage.GROUND_COVERED)
"""Stages that only improve records that already exist."""


class _NoRoomError(InputError):
    """A dispensable stage has no room, and waiting would not help."""


class Extractions(CourseAdvancer[Extraction, Standing]):
    """The work of a control worker on extractions."""

    _claims_on_them = EXTRACTIONS

    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        embedder_of: EmbedderOf = no_embedder,
    ) -> None:
        """`embedder_of` as for `validate_batch`, the rest as `Advancer`."""
        super().__init__(sessions, storage, settings, hold_sessions=hold_sessions, is_stopping=is_stopping)
        self._embedder_of = embedder_of

    def _cancel(self, session: Session, graph: Extraction, *, reason: str) -> None:
        lifecycle.stop(session, graph, reason=reason)

    def _end(self, session: Session, graph: Extraction, *, is_cancelled: bool) -> None:
        lifecycle.move(session, graph, ExtractionState.CANCELLED if is_cancelled else ExtractionState.FAILED)

    def _look(self, session: Session, course_id: str) -> Standing:
        return look(session, course_id)

    def _begin_next(self, work: ExtractionWork, standing: Standing) -> bool:
        reason = standing.early_end
        try:
            if any(self._begin_stage(work, standing, stage) for stage in standing.next_stages):
                return True
        except _NoRoomError as error:
            reason = "; ".join(filter(None, (reason, str(error))))
        self._complete(work, standing, reason)
        return False

    # --- a stage -----------------------------------------------------------------------------------------------------

    def _begin_stage(self, work: ExtractionWork, standing: Standing, stage: DocumentStage) -> bool:
        """Begin a stage; return False if it is a further round with nothing to ask.

        Raises what `_submit` raises, or _NoRoomError if the stage is dispensable.
        """
        stage_lines = self._lines_of(work, standing)
        kept = stage_lines.keep(stage)
        documents_key = kept["documents_file_id"].object_key if stage is DocumentStage.READ else None
        counted = CountedLines(stage_lines.lines(stage, documents_key=documents_key))
        is_further_round = stage in map(stage_of, standing.begun)
        if is_further_round and counted.is_empty():
            return False
        object_key = files.new_object_key(standing.extraction.tenant_id)
        name = f"{standing.extraction.id}_{stage}.jsonl"
        written = made_inputs.write_input(self._storage, object_key, counted, filename=name, settings=self._settings)
        if stage in _ASKING_AGAIN and counted.num_lines and not is_further_round:
            provisional = (one.provisional_record() for one in self._lines_of(work, standing).progress())
            kept = {"output_file_id": outputs.write_provisional(self._storage, standing.extraction, provisional)}
        try:
            self._submit(work, stage, kept, written if counted.num_lines else None, num_lines=counted.num_lines)
        except (LimitError, RateLimitError, TooLargeError, OverBudgetError) as error:
            for key in (object_key, *(new.object_key for new in kept.values())):  # the next attempt writes them again
                self._storage.delete(key)
            if stage in _DISPENSABLE and self._lasts(work, error):
                raise _NoRoomError(f"it ended before its stage {stage}, which had no room: {error}") from error
            raise
        return True

    def _lasts(self, work: ExtractionWork, error: InputError) -> bool:
        """Tell whether waiting is pointless: there will never be room, or the extraction's time is over."""
        if not isinstance(error, (LimitError, RateLimitError)):
            return True
        with work.reading() as session:
            extraction = session.get_one(Extraction, work.claim.id)
            return bool(session.scalar(select(func.clock_timestamp() >= extraction.expires_at)))

    def _submit(
        self,
        work: ExtractionWork,
        stage: DocumentStage,
        kept: dict[str, NewFile],
        lines: NewFile | None,
        *,
        num_lines: int,
    ) -> None:
        with work.writing() as (session, extraction):
            if extraction.state != ExtractionState.IN_PROGRESS:
                return  # it was cancelled meanwhile, which the next attempt sees
            for column, new in kept.items():
                _delete_kept(session, extraction, column)
                setattr(extraction, column, files.create_file(session, extraction.tenant_id, new).id)
            stages.begin(session, extraction, stage, lines, num_lines=num_lines, settings=self._settings)

    def _end_stage(self, work: ExtractionWork, standing: Standing) -> None:
        open_stage, batch = standing.open_stage, standing.open_batch
        assert open_stage is not None, "the stage that has ended"
        if batch is not None and batch.state == BatchState.FAILED:
            raise ExtractionFailedError(problem_of(open_stage, batch))
        if stage_of(open_stage) is DocumentStage.READ and batch is not None:
            note_read(work, self._lines_of(work, standing).progress())
        with work.writing() as (session, extraction):
            stage = session.get_one(ExtractionStage, (extraction.id, open_stage.number))
            course_stages.note_ended(session, extraction, stage)

    def _lines_of(self, work: ExtractionWork, standing: Standing) -> StageLines:
        return StageLines(work, standing, self._storage, self._settings, embedder_of=self._embedder_of)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _complete(self, work: ExtractionWork, standing: Standing, reason: str | None) -> None:
        schema = standing.job.schema
        all_records = (one.record() for one in self._lines_of(work, standing).progress())
        records = reviews.noting(work, schema, all_records)
        written = outputs.write(self._storage, standing.extraction, records, schema=schema)
        with work.writing() as (session, extraction):
            if extraction.state == ExtractionState.CANCELLING:  # cancelled meanwhile: end as the next attempt would
                reviews.forget(session, [extraction.id])
                self._end_early(session, extraction)
                return
            _delete_kept(session, extraction, "output_file_id")
            extraction.output_file_id = files.create_file(session, extraction.tenant_id, written.records).id
            if written.table is not None:
                extraction.parquet_file_id = files.create_file(session, extraction.tenant_id, written.table).id
            extraction.num_done = written.num_done
            extraction.failed_codes = dict(written.codes)
            extraction.num_to_review = written.num_to_review
            record_ranges.note(session, extraction.id, written.ranges)
            note_reason(extraction, reason)
            lifecycle.move(session, extraction, ExtractionState.COMPLETED)


def _delete_kept(session: Session, extraction: Extraction, column: str) -> None:
    """Delete the file that is about to be replaced, unless there is none or its owner has deleted it."""
    of_it = (File.id == getattr(extraction, column)) & File.deleted_at.is_(None)
    files.mark_deleted(session, session.scalars(select(File).where(of_it).with_for_update()).all(), by=extraction.id)
