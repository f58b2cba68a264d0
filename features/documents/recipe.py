"""The recipe of an extraction: which stage begins next, its lines, and at the end the records.

Objects are written before a row names them, and swept if none ever does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.documents import lifecycle, outputs, record_ranges, stages
from features.documents.claims import ExtractionWork
from features.documents.collections.embedders import EmbedderOf, no_embedder
from features.documents.collections.read_notes import note_read
from features.documents.reviewing import reviews
from features.documents.stage_lines import ExtractionFailedError, StageLines
from features.documents.stages import DocumentStage, stage_of
from features.documents.standing import Standing, look, problem_of
from features.documents.states import ExtractionState
from features.documents.tables import Extraction, ExtractionNode
from flows import nodes
from flows.counted_lines import CountedLines
from flows.reasons import note_reason
from flows.recipe import EndEarlyError, Recipe
from flows.tables import FlowNode
from jobs import files
from jobs.batches import made_inputs
from jobs.errors import InputError, LimitError, OverBudgetError, RateLimitError, TooLargeError
from jobs.files import NewFile
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage
from jobs.tables import File

_ASKING_AGAIN = (DocumentStage.ASK_AGAIN, DocumentStage.ASK_COVERED)
_DISPENSABLE = (*_ASKING_AGAIN, DocumentStage.GROUND_AGAIN, DocumentStage.GROUND_COVERED)
"""Stages that only improve records that already exist."""


class ExtractionRecipe(Recipe[Extraction, Standing]):
    """What an extraction does, stage by stage."""

    name = "extraction"
    kind = Extraction

    def __init__(self, storage: Storage, settings: Settings, *, embedder_of: EmbedderOf = no_embedder) -> None:
        """`embedder_of` names the models of indexes."""
        self._storage = storage
        self._settings = settings
        self._embedder_of = embedder_of

    def look(self, session: Session, flow_id: str) -> Standing:
        return look(session, flow_id)

    def next_nodes(self, standing: Standing) -> Sequence[str]:
        return standing.next_stages

    def waits_until(self, standing: Standing) -> datetime:
        return standing.flow.expires_at

    def cancel(self, session: Session, flow: Extraction, *, reason: str) -> None:
        lifecycle.stop(session, flow, reason=reason)

    def end_early(self, session: Session, flow: Extraction, *, is_cancelled: bool) -> None:
        lifecycle.EXTRACTIONS.move(session, flow, ExtractionState.CANCELLED if is_cancelled else ExtractionState.FAILED)

    # --- a stage -----------------------------------------------------------------------------------------------------

    def begin(self, work: ExtractionWork, standing: Standing, name: str) -> bool:
        stage = DocumentStage(name)
        stage_lines = self._lines_of(work, standing)
        kept = stage_lines.keep(stage)
        documents_key = kept["documents_file_id"].object_key if stage is DocumentStage.READ else None
        counted = CountedLines(stage_lines.lines(stage, documents_key=documents_key))
        is_further_round = stage in map(stage_of, standing.begun)
        if is_further_round and counted.is_empty():
            return False
        object_key = files.new_object_key(standing.flow.tenant_id)
        name = f"{standing.flow.id}_{stage}.jsonl"
        written = made_inputs.write_input(self._storage, object_key, counted, filename=name, settings=self._settings)
        if stage in _ASKING_AGAIN and counted.num_lines and not is_further_round:
            provisional = (one.provisional_record() for one in self._lines_of(work, standing).progress())
            kept = {"output_file_id": outputs.write_provisional(self._storage, standing.flow, provisional)}
        try:
            self._submit(work, stage, kept, written if counted.num_lines else None, num_lines=counted.num_lines)
        except (LimitError, RateLimitError, TooLargeError, OverBudgetError) as error:
            for key in (object_key, *(new.object_key for new in kept.values())):  # the next attempt writes them again
                self._storage.delete(key)
            if stage in _DISPENSABLE and self._lasts(work, error):
                raise EndEarlyError(f"it ended before its stage {stage}, which had no room: {error}") from error
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

    def end(self, work: ExtractionWork, standing: Standing, node: FlowNode) -> None:
        batch = standing.batch_of(node)
        if batch is not None and batch.state == BatchState.FAILED:
            raise ExtractionFailedError(problem_of(node, batch))
        if stage_of(node) is DocumentStage.READ and batch is not None:
            note_read(work, self._lines_of(work, standing).progress())
        with work.writing() as (session, extraction):
            nodes.note_ended(session, extraction, session.get_one(ExtractionNode, (extraction.id, node.number)))

    def _lines_of(self, work: ExtractionWork, standing: Standing) -> StageLines:
        return StageLines(work, standing, self._storage, self._settings, embedder_of=self._embedder_of)

    # --- the end -----------------------------------------------------------------------------------------------------

    def complete(self, work: ExtractionWork, standing: Standing, *, reason: str | None) -> None:
        reason = "; ".join(filter(None, (standing.early_end, reason)))
        schema = standing.job.schema
        all_records = (one.record() for one in self._lines_of(work, standing).progress())
        records = reviews.noting(work, schema, all_records)
        written = outputs.write(self._storage, standing.flow, records, schema=schema)
        with work.writing() as (session, extraction):
            if extraction.state == ExtractionState.CANCELLING:  # cancelled meanwhile: end as the next attempt would
                reviews.forget(session, [extraction.id])
                self.end_early(session, extraction, is_cancelled=True)
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
            lifecycle.EXTRACTIONS.move(session, extraction, ExtractionState.COMPLETED)


def _delete_kept(session: Session, extraction: Extraction, column: str) -> None:
    """Delete the file that is about to be replaced, unless there is none or its owner has deleted it."""
    of_it = (File.id == getattr(extraction, column)) & File.deleted_at.is_(None)
    files.mark_deleted(session, session.scalars(select(File).where(of_it).with_for_update()).all(), by=extraction.id)
