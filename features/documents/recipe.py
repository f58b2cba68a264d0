"""The recipe of an extraction: its documents are read, each then goes from stage to stage by itself, and has a record.

Objects are written before a row names them, and swept if none ever does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime

from sqlalchemy.orm import Session

from features.documents import lifecycle, outputs, record_ranges, stages
from features.documents.claims import ExtractionWork
from features.documents.collections.embedders import EmbedderOf, no_embedder
from features.documents.collections.snapshot import kept_documents
from features.documents.courses import carried, kept_files, rows
from features.documents.courses.advancing import DocumentAdvancer, WaitsForStartError
from features.documents.courses.stage_lines import ExtractionFailedError, StageLines
from features.documents.progress import DocumentProgress
from features.documents.reviewing import reviews
from features.documents.stages import GROUNDING, DocumentStage, node_number, stage_of
from features.documents.standing import Standing, look, problem_of
from features.documents.states import ExtractionState
from features.documents.tables import Extraction, ExtractionNode
from flows import nodes
from flows.reasons import note_reason
from flows.recipe import Recipe
from flows.tables import FlowNode
from jobs.errors import LimitError, RateLimitError
from jobs.settings import Settings
from jobs.states import BatchState
from jobs.storage import Storage

_BEHIND_GROUND = 4
"""Nodes that a document with a record has been at, unless it is over: read, ask, ground, and the one where it is."""


class ExtractionRecipe(Recipe[Extraction, Standing]):
    """What an extraction does."""

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

    # --- nodes -------------------------------------------------------------------------------------------------------

    def begin(self, work: ExtractionWork, standing: Standing, name: str) -> bool:
        stage = DocumentStage(name)
        if stage is DocumentStage.READ:
            self._begin_reading(work, standing)
            return True
        with work.writing() as (session, extraction):  # no document has come to it, and none will
            number = node_number(stage)
            stages.begin(session, extraction, stage, None, number=number, num_lines=0, settings=self._settings)
        return True

    def act(self, work: ExtractionWork, standing: Standing) -> bool:
        if carried.is_carried(work, standing):
            carried.place(work, standing, self._storage, self._lines_of(work, standing).key_of)
            return True
        if self._write_provisional(work, standing):
            return True
        if not standing.open_nodes:
            return False
        advancer = self._advancer(work, standing)
        for node in standing.open_in_order:
            batch = standing.batch_of(node)
            if batch is not None and batch.state == BatchState.FAILED:
                raise ExtractionFailedError(problem_of(node, batch))
            with suppress(WaitsForStartError):  # it is looked at again
                if self._act_on(advancer, node, is_running=batch in standing.running):
                    return True
        reading = [node for node in standing.open_nodes if stage_of(node) is DocumentStage.READ]
        return any(advancer.read_more(node) for node in reading)

    @staticmethod
    def _act_on(advancer: DocumentAdvancer, node: ExtractionNode, *, is_running: bool) -> bool:
        """Act on the next results of a node, or on its end; False if there is neither."""
        if (not is_running or node.num_seen is not None) and advancer.take(node):
            return True
        if not is_running:
            advancer.end(node)
        return not is_running

    def end(self, work: ExtractionWork, standing: Standing, node: FlowNode) -> None:
        assert isinstance(node, ExtractionNode), "a node of an extraction"
        self._advancer(work, standing).end(node)

    def _begin_reading(self, work: ExtractionWork, standing: Standing) -> None:
        of_extraction = self._lines_of(work, standing)
        kept = of_extraction.keep(DocumentStage.READ)
        documents = list(kept_documents(self._storage, kept["documents_file_id"].object_key))
        is_followed = standing.plan.examples_of is None  # examples are documents that it reads
        first = documents[: rows.UNDER_WAY] if is_followed else documents
        lines = (document.read_line(number) for number, document in first if not document.is_index)
        written = nodes.write_lines(self._storage, standing.flow, DocumentStage.READ, lines, settings=self._settings)
        try:
            with work.writing() as (session, extraction):
                if extraction.state != ExtractionState.IN_PROGRESS:
                    return  # it was cancelled meanwhile, which the next attempt sees
                kept_files.replace(session, extraction, kept)
                number = node_number(DocumentStage.READ)
                stages.begin(
                    session,
                    extraction,
                    DocumentStage.READ,
                    written.file,
                    number=number,
                    num_lines=written.num_lines,
                    settings=self._settings,
                    is_growing=len(first) < len(documents),
                    is_followed=is_followed,
                )
                rows.begin(session, extraction.id, documents, node=number, num_lines=written.num_lines)
        except (LimitError, RateLimitError):
            for key in (written.object_key, *(new.object_key for new in kept.values())):
                if key is not None:
                    self._storage.delete(key)  # the next attempt writes them again
            raise

    def _advancer(self, work: ExtractionWork, standing: Standing) -> DocumentAdvancer:
        of_extraction = self._lines_of(work, standing)
        return DocumentAdvancer(
            work,
            standing,
            self._storage,
            self._settings,
            steps=of_extraction.steps(),
            keep=of_extraction.keep,
        )

    def _lines_of(self, work: ExtractionWork, standing: Standing) -> StageLines:
        return StageLines(work, standing, self._storage, self._settings, embedder_of=self._embedder_of)

    # --- records -----------------------------------------------------------------------------------------------------

    def complete(self, work: ExtractionWork, standing: Standing, *, reason: str | None) -> None:
        reason = "; ".join(filter(None, (standing.early_end, reason)))
        schema = standing.job.schema
        records = reviews.noting(work, schema, (one.record() for one in self._documents(work, standing)))
        written = outputs.write(self._storage, standing.flow, records, schema=schema)
        with work.writing() as (session, extraction):
            if extraction.state == ExtractionState.CANCELLING:  # cancelled meanwhile: end as the next attempt would
                reviews.forget(session, [extraction.id])
                self.end_early(session, extraction, is_cancelled=True)
                return
            of_it = {"output_file_id": written.records, "parquet_file_id": written.table}
            kept_files.replace(session, extraction, {name: new for name, new in of_it.items() if new is not None})
            extraction.num_done = written.num_done
            extraction.failed_codes = dict(written.codes)
            extraction.num_to_review = written.num_to_review
            record_ranges.note(session, extraction.id, written.ranges)
            note_reason(extraction, reason)
            lifecycle.EXTRACTIONS.move(session, extraction, ExtractionState.COMPLETED)

    def _write_provisional(self, work: ExtractionWork, standing: Standing) -> bool:
        """Write the records so far, each time there are twice as many as before; return whether it did."""
        num_grounded = sum(node.num_seen or 0 for node in standing.begun if stage_of(node) in GROUNDING)
        if num_grounded < max(1, 2 * standing.flow.num_provisional):
            return False
        with work.reading() as session:
            if not rows.is_any_open(session, standing.flow.id):
                return False
        records = (one.provisional_record() for one in self._documents(work, standing, least_nodes=_BEHIND_GROUND))
        written = outputs.write_provisional(self._storage, standing.flow, records)
        with work.writing() as (session, extraction):
            if extraction.state != ExtractionState.IN_PROGRESS:
                return True  # it was cancelled meanwhile, which the next attempt sees
            kept_files.replace(session, extraction, {"output_file_id": written})
            extraction.num_provisional = num_grounded
        return True

    def _documents(
        self, work: ExtractionWork, standing: Standing, *, least_nodes: int = 0
    ) -> Iterator[DocumentProgress]:
        """Yield documents in their order, those that are over or have been at so many nodes."""
        after = -1
        while True:
            with work.reading() as session:
                page = rows.page(session, standing.flow.id, after=after, least_nodes=least_nodes)
                known = list(rows.progress(session, standing, page))
            if not page:
                return
            for one in known:
                work.check()
                yield one
            after = page[-1].number
